package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/test/golden"
	"github.com/crisp-cri/crisp/test/manpage"
)

// The man page is generated from the commands; -update writes it.
func TestManPage(t *testing.T) {
	page := manpage.Man((&cli{}).root(), 1,
		manpage.Section{Title: "EXIT STATUS", Text: exitCodes},
		manpage.Section{Title: "ENVIRONMENT", Text: `CRISP_RUNTIME_ENDPOINT, then CONTAINER_RUNTIME_ENDPOINT, crictl's variable: the runtime's socket (default ` + defaultEndpoint + `).

CRISP_AGENT_ROOT: the agent's directory (default ` + defaultAgentRoot + `).`},
		manpage.Section{Title: "SEE ALSO", Text: "crispd(8), crispd.toml(5)"})
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

// The table of commands in docs/commands.md is generated from the commands; -update writes it.
func TestCommandsDocument(t *testing.T) {
	const (
		path = "../../docs/commands.md"
		head = "<!-- commands: made by go test ./cmd/crisp -run TestCommandsDocument -update -->\n"
		end  = "<!-- end of commands -->"
	)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(data), head)
	have, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table of commands", path)
	}
	want := "\n| command | does |\n|---|---|\n"
	group := ""
	for _, cmd := range (&cli{}).root().Commands() {
		if cmd.IsAvailableCommand() {
			if cmd.GroupID != group {
				group = cmd.GroupID
				want += fmt.Sprintf("| **%s** | |\n", group)
			}
			want += fmt.Sprintf("| `%s` | %s |\n", strings.Join(append([]string{cmd.Name()}, cmd.Aliases...), "`, `"), cmd.Short)
		}
	}
	want += "\n"
	if have == want {
		return
	}
	if !golden.Update() {
		t.Fatalf("the table in %s is not of these commands: go test ./cmd/crisp -run TestCommandsDocument -update", path)
	}
	if err := os.WriteFile(path, []byte(before+head+want+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}
