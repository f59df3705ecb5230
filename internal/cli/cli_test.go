package cli_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/internal/cli"
)

var program = cli.Program{
	Name: "prog", About: "a program",
	Flags: []cli.Flag{{Name: "socket", Value: "socket", About: "where it is"}},
	Commands: []cli.Command{
		{Name: "get", Usage: "pods", About: "list pods", Words: []string{"pods", "nodes"}, Flags: []cli.Flag{{Name: "o", Value: "format", About: "how"}, {Name: "all", About: "don't choose"}}},
		{Name: "rm", About: "remove"},
		{Name: "version", About: "tell it", Bare: true},
	},
}

// What bash itself makes of the script: commands first, then the command's own words
// and flags; nothing of another command.
func TestBash(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("needs bash")
	}
	script, err := cli.Completion(program, "bash")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "prog.bash")
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"prog get ":      "pods nodes --all -o --socket",
		"prog get --a":   "--all",
		"prog rm --":     "--socket",
		"prog get -o ":   "",
		"prog version -": "",
	} {
		words := strings.Split(line, " ")
		var quoted []string
		for _, w := range words {
			quoted = append(quoted, "'"+w+"'")
		}
		cmd := exec.Command("bash", "-c", `. "$1"; eval "COMP_WORDS=($2)"; COMP_CWORD=$((${#COMP_WORDS[@]}-1)); _prog; echo "${COMPREPLY[@]}"`, "-", file, strings.Join(quoted, " "))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
		if got := strings.TrimSpace(string(out)); got != want {
			t.Errorf("%q completes to %q, want %q", line, got, want)
		}
	}
}

// The other shells are asked whether they can read the script at all.
func TestScriptsParse(t *testing.T) {
	for _, shell := range cli.Shells {
		script, err := cli.Completion(program, shell)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"get", "nodes", "socket"} {
			if !strings.Contains(script, want) {
				t.Errorf("%s: no %s in\n%s", shell, want, script)
			}
		}
		if _, err := exec.LookPath(shell); err != nil {
			t.Logf("%s is not here: its script was not parsed", shell)
			continue
		}
		file := filepath.Join(t.TempDir(), "script")
		if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(shell, "-n", file).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s\n%s", shell, err, out, script)
		}
	}
	if _, err := cli.Completion(program, "csh"); err == nil {
		t.Error("csh has completion")
	}
}

func TestMan(t *testing.T) {
	page := cli.Man(program, 8, cli.Section{Title: "FILES", Text: ".hidden is no macro\n\n  shown - as it is"})
	for _, want := range []string{`.TH PROG 8`, `\fB\-\-all\fR`, "\n\\&.hidden is no macro\n", ".nf\n  shown \\- as it is\n.fi\n"} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
	if _, err := exec.LookPath("man"); err != nil {
		return
	}
	file := filepath.Join(t.TempDir(), "prog.8")
	if err := os.WriteFile(file, []byte(page), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("man", "--warnings", "-l", file).CombinedOutput()
	if err != nil || strings.Contains(string(out), "warning") {
		t.Errorf("%v\n%s", err, out)
	}
}
