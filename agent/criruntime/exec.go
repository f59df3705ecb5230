package criruntime

import (
	"context"
	"errors"
	"time"

	"github.com/crisp-cri/crisp/agent/podspec"
	"github.com/crisp-cri/crisp/agent/probe"
	v1 "k8s.io/api/core/v1"
	criclient "k8s.io/cri-client/pkg"
	utilexec "k8s.io/utils/exec"
)

// maxOutput is how much of a probe's output is kept for its event.
const maxOutput = 10 << 10

// ProbeExec implements probe.Prober: it runs the command of a probe. It expands only the
// environment variables whose values are in the manifest.
func (d *Driver) ProbeExec(ctx context.Context, c *v1.Container, id string, command []string, timeout time.Duration) (probe.Answer, error) {
	env := map[string]string{}
	for _, e := range c.Env {
		env[e.Name] = e.Value
	}
	words := make([]string, len(command))
	for i, word := range command {
		words[i] = podspec.Expand(word, func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	}
	stdout, stderr, err := d.runtime.ExecSync(ctx, id, words, timeout)
	output := append(stdout, stderr...)
	text := string(output[:min(len(output), maxOutput)])
	switch exit, exited := errors.AsType[utilexec.ExitError](err); {
	case err == nil, exited && exit.ExitStatus() == 0:
		return probe.Answer{OK: true, Text: text}, nil
	case exited:
		return probe.Answer{Text: text}, nil
	case errors.Is(err, criclient.ErrCommandTimedOut):
		return probe.Answer{Text: err.Error()}, nil
	}
	return probe.Answer{}, Fault(err)
}
