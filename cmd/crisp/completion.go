package main

import (
	"context"
	"flag"
	"io"

	cmdline "github.com/crisp-cri/crisp/internal/cli"
)

func init() {
	// It knows all commands, and so cannot be in their table.
	commands = append(commands, command{"completion", "SHELL", "print a script that completes this command line in bash, zsh or fish", runCompletion})
}

func runCompletion(c *cli, args []string) error {
	fs := flag.NewFlagSet("completion", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	rest, err := c.parse(fs, args)
	if err != nil {
		return err
	}
	if len(rest) != 1 {
		return usageError("completion needs one shell: bash, zsh or fish")
	}
	script, err := cmdline.Completion(commandLine(), rest[0])
	if err != nil {
		return usageError("%v", err)
	}
	_, err = io.WriteString(c.stdout, script)
	return err
}

// words are what some commands take, where that does not depend on the node.
var words = map[string][]string{"get": {"pods"}, "image": {"load"}, "completion": cmdline.Shells}

// commandLine is the whole of it, for completion and the man page. Each command is
// asked for its help, and shows its flags instead.
func commandLine() cmdline.Program {
	p := cmdline.Program{Name: "crisp", About: "run pods on one node without a cluster, and look at them"}
	for _, cmd := range commands {
		list := cmdline.Command{Name: cmd.name, Usage: cmd.usage, About: cmd.about, Words: words[cmd.name]}
		c := &cli{ctx: context.Background(), stdout: io.Discard, stderr: io.Discard, cmd: cmd}
		c.see = func(fs *flag.FlagSet) { list.Flags = cmdline.FlagsOf(fs) }
		_ = cmd.run(c, []string{"--help"}) // errHelp
		p.Commands = append(p.Commands, list)
	}
	return p
}
