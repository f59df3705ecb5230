package criruntime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/podspec"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/probe"
	"github.com/crisp-cri/crisp/internal/periodic"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	criclient "k8s.io/cri-client/pkg"
	utilexec "k8s.io/utils/exec"
)

// hook runs a postStart or preStop handler in or against the container id of c. Only ctx limits
// its time.
func (d *Driver) hook(ctx context.Context, pod *v1.Pod, c *v1.Container, id string, h *v1.LifecycleHandler) error {
	switch {
	case h.Exec != nil:
		_, _, err := d.runtime.ExecSync(ctx, id, h.Exec.Command, 0)
		return Fault(err)
	case h.HTTPGet != nil:
		return d.httpHook(ctx, pod, c, h.HTTPGet)
	case h.Sleep != nil:
		periodic.Pause(ctx, podsync.Seconds(h.Sleep.Seconds))
		return ctx.Err()
	}
	return errors.New("handler has no action")
}

// httpHook makes one request and ignores the response. A server that answers an HTTPS request
// with HTTP is asked again by HTTP.
func (d *Driver) httpHook(ctx context.Context, pod *v1.Pod, c *v1.Container, a *v1.HTTPGetAction) error {
	host := a.Host
	if host == "" {
		ips, err := d.addresses(ctx, pod)
		if err != nil {
			return err
		}
		if len(ips) == 0 {
			return fmt.Errorf("pod %s/%s has no address", pod.Namespace, pod.Name)
		}
		host = ips[0]
	}
	req, err := probe.HTTPRequest(a, c, host, "lifecycle")
	if err != nil {
		return err
	}
	client := probe.HTTPClient()
	resp, err := client.Do(req.WithContext(ctx))
	if err != nil && strings.Contains(err.Error(), "server gave HTTP response to HTTPS client") {
		again := req.Clone(ctx)
		again.URL.Scheme = "http"
		again.Header.Del("Authorization")
		resp, err = client.Do(again)
	}
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, 10<<10)) // so that the server is not cut off
	return err
}

// addresses returns those of the pod's newest ready sandbox, or the node's with its network.
func (d *Driver) addresses(ctx context.Context, pod *v1.Pod) ([]string, error) {
	selector := d.of(podsync.KeyOf(pod))
	selector[podspec.LabelPodUID] = string(pod.UID)
	ready := &cri.PodSandboxStateValue{State: cri.PodSandboxState_SANDBOX_READY}
	list, err := d.runtime.ListPodSandbox(ctx, &cri.PodSandboxFilter{LabelSelector: selector, State: ready})
	if err != nil || len(list) == 0 {
		return nil, Fault(err)
	}
	newest := slices.MaxFunc(list, func(a, b *cri.PodSandbox) int {
		return cmp.Or(cmp.Compare(a.GetMetadata().GetAttempt(), b.GetMetadata().GetAttempt()), cmp.Compare(a.CreatedAt, b.CreatedAt))
	})
	resp, err := d.runtime.PodSandboxStatus(ctx, newest.Id, false)
	if err != nil {
		return nil, gone(err)
	}
	sandbox := SandboxOf(newest, resp.GetStatus())
	if sandbox.HostNetwork {
		return d.o.Host.IPs(), nil
	}
	return sandbox.IPs, nil
}

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
