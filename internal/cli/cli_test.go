package cli_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/internal/cli"
	"github.com/spf13/cobra"
)

var errUsage = errors.New("usage")

// program runs one command line and returns what it printed.
func program(args ...string) (string, error) {
	root := &cobra.Command{Use: "prog COMMAND", Short: "a program"}
	root.PersistentFlags().String("socket", "/s", "where the `socket` is")
	get := &cobra.Command{Use: "get pods", Short: "list pods", ValidArgs: []string{"pods", "nodes"}, RunE: func(*cobra.Command, []string) error {
		fmt.Fprintln(root.OutOrStdout(), "got")
		return nil
	}}
	get.Flags().StringP("output", "o", "", "how, as `format`")
	get.Flags().Bool("all", false, "don't choose")
	root.AddCommand(get)
	var out strings.Builder
	root.SetOut(&out)
	cli.Complete(root, func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", errUsage, fmt.Sprintf(format, args...))
	}, "that is all")
	root.SetArgs(cli.DoubleDashes(root, args))
	err := root.Execute()
	return out.String(), err
}

// The help of the program and of a command lists commands and flags.
func TestHelp(t *testing.T) {
	for _, test := range []struct {
		line string
		want []string
		not  string
	}{
		{"", []string{"prog: a program", "  get          list pods", "  completion", "--socket socket", "(default /s)", "that is all"}, "--all"},
		{"--help", []string{"  get          list pods"}, "--all"},
		{"help get", []string{"prog get: list pods", "usage: prog get pods", "-o, --output format", "--all ", "as every command:\n  --socket"}, "that is all"},
		{"get -h", []string{"prog get: list pods"}, "that is all"},
		{"-socket z get -all x -output=y", []string{"got"}, "usage"},
		{"get x --all -o y --socket z", []string{"got"}, "usage"},
	} {
		out, err := program(strings.Fields(test.line)...)
		if err != nil {
			t.Errorf("%q: %v", test.line, err)
		}
		for _, want := range test.want {
			if !strings.Contains(out, want) {
				t.Errorf("%q: no %q in\n%s", test.line, want, out)
			}
		}
		if strings.Contains(out, test.not) {
			t.Errorf("%q: %q is in\n%s", test.line, test.not, out)
		}
	}
}

// Help shows the groups of commands, with the completion in the last.
func TestGroups(t *testing.T) {
	root := &cobra.Command{Use: "prog COMMAND", Short: "a program"}
	for _, group := range []string{"look", "change"} {
		root.AddGroup(&cobra.Group{ID: group, Title: group})
		root.AddCommand(&cobra.Command{Use: "do-" + group, Short: "it", GroupID: group, Run: func(*cobra.Command, []string) {}})
	}
	var out strings.Builder
	root.SetOut(&out)
	cli.Complete(root, fmt.Errorf, "")
	root.SetArgs([]string{"help"})
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	if want := "\nlook:\n  do-look      it\n\nchange:\n  do-change    it\n  completion "; !strings.Contains(out.String(), want) {
		t.Errorf("help has no %q:\n%s", want, out.String())
	}
}

// A usage error is returned for the caller to print.
func TestMistakes(t *testing.T) {
	for line, want := range map[string]string{
		"put":            `there is no command "put": see prog help`,
		"help put":       `there is no command "put": see prog help`,
		"get --colour":   "unknown flag: --colour",
		"get -ax":        "unknown shorthand flag: 'a' in -ax",
		"--colour":       "unknown flag: --colour",
		"completion":     "completion needs one shell: bash, zsh, fish",
		"completion csh": `there is completion for bash, zsh, fish, not for "csh"`,
	} {
		out, err := program(strings.Fields(line)...)
		if !errors.Is(err, errUsage) || !strings.Contains(err.Error(), want) || out != "" {
			t.Errorf("%q: %v, printed %q, want %q", line, err, out, want)
		}
	}
}

// The shell scripts get completions from the program itself.
func TestCompletes(t *testing.T) {
	for line, want := range map[string][]string{
		"get ":      {"pods", "nodes"},
		"get pods ": nil,
		"get --a":   {"--all"},
		"get --s":   {"--socket"},
		"g":         {"get"},
	} {
		out, err := program(append([]string{cobra.ShellCompNoDescRequestCmd}, strings.Split(line, " ")...)...)
		if err != nil {
			t.Errorf("%q: %v", line, err)
		}
		for _, word := range want {
			if !strings.Contains(out, word+"\n") {
				t.Errorf("%q: no %s in\n%s", line, word, out)
			}
		}
	}
}

// The shells can parse the scripts.
func TestScriptsParse(t *testing.T) {
	for _, shell := range cli.Shells {
		script, err := program("completion", shell)
		if err != nil || !strings.Contains(script, "prog") {
			t.Fatalf("%v\n%s", err, script)
		}
		if _, err := exec.LookPath(shell); err != nil {
			t.Logf("%s is not installed: its script was not parsed", shell)
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
}
