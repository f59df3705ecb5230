package main

import (
	"strings"
	"testing"

	cmdline "github.com/crisp-cri/crisp/internal/cli"
	"github.com/crisp-cri/crisp/test/golden"
)

// The man page is generated from the commands; -update writes it.
func TestManPage(t *testing.T) {
	page := cmdline.Man((&cli{}).root(), 1,
		cmdline.Section{Title: "EXIT STATUS", Text: exitCodes},
		cmdline.Section{Title: "ENVIRONMENT", Text: `CRISP_RUNTIME_ENDPOINT, then CONTAINER_RUNTIME_ENDPOINT, crictl's variable: the runtime's socket (default ` + defaultEndpoint + `).

CRISP_AGENT_ROOT: the agent's directory (default ` + defaultAgentRoot + `).`},
		cmdline.Section{Title: "SEE ALSO", Text: "crispd(8), crispd.toml(5)"})
	golden.Check(t, "../../docs/man/crisp.1", page)
	if !strings.Contains(page, `\fB\-\-manifests\fR`) || !strings.Contains(page, `\fB\-\-tail\fR`) {
		t.Error("flags of commands are not in the page")
	}
}

// A shell completes commands' flags.
func TestCompletion(t *testing.T) {
	var out, errOut strings.Builder
	if code := run(t.Context(), []string{"__complete", "agent", "--mani"}, nil, &out, &errOut); code != exitOK || !strings.Contains(out.String(), "--manifests") {
		t.Errorf("exit code %d, %s", code, errOut.String())
	}
	if code := run(t.Context(), []string{"completion", "csh"}, nil, &out, &errOut); code != exitUsage {
		t.Errorf("csh: exit code %d", code)
	}
}
