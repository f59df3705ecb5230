// Command crispd is the daemon: it serves CRI on a unix socket and may be
// stopped, killed or replaced at any moment without a container noticing.
//
//	crispd [flags]             serve
//	crispd config [flags]      print the configuration in force and where it comes from
//	crispd check [flags]       tell what this host lacks and what follows from it
//	crispd wipe [flags]        end and remove everything of this instance
//	crispd debug WHAT [flags]  look into the crispd that runs
//	crispd completion SHELL    print a script that completes these in a shell
//	crispd version             print the version
//
// This package only reads flags, wires the other packages together (wire.go) and
// passes signals on (serve.go): SIGTERM and SIGINT end crispd cleanly and leave the
// containers running, SIGHUP reads the configuration again (reload.go), SIGUSR1
// writes all goroutine stacks to a file in the state directory.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/config"
	"github.com/crisp-cri/crisp/internal/cli"
)

// version is set by the linker.
var version = "unknown"

// exitStatus is an error that says all by the program's exit code.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

func main() {
	err := run(os.Args[1:], os.Stdout)
	var status exitStatus
	switch {
	case errors.As(err, &status):
		os.Exit(int(status))
	case errors.Is(err, flag.ErrHelp):
		os.Exit(0)
	case err != nil:
		fmt.Fprintln(os.Stderr, "crispd:", err)
		os.Exit(1)
	}
}

// A command is one thing that crispd does.
type command struct {
	name, usage, about string
	words              []string // its argument is one of these; nil = it has none
	flags              func(*flag.FlagSet, *flags)
	bare               func(f flags, out io.Writer) error // it needs no configuration
	run                func(c *config.Config, f flags, out io.Writer) error
}

// commands is a function because they know of each other.
func commands() []command {
	return []command{
		{about: "serve CRI until SIGTERM; containers run on", usage: "[flags]",
			run: func(c *config.Config, f flags, _ io.Writer) error { return serve(c, f.source) }},
		{name: "config", usage: "[flags]", about: "print the configuration in force and where each value comes from",
			run: func(c *config.Config, _ flags, out io.Writer) error { return c.Write(out) }},
		{name: "check", usage: "[flags]", about: "tell what this host lacks and what follows from it; status 1 if crispd cannot run here",
			run: func(c *config.Config, _ flags, out io.Writer) error { return check(c, out) }},
		{name: "wipe", usage: "[--all] [flags]", about: "end every container of this instance and remove what it made on the host",
			flags: func(set *flag.FlagSet, f *flags) {
				set.BoolVar(&f.all, "all", false, "remove the root directory too: images and all")
			},
			run: func(c *config.Config, f flags, out io.Writer) error { return wipe(c, f.all, out) }},
		{name: "debug", usage: "WHAT [--seconds N] [flags]", about: "look into the crispd that runs, by its debug socket", words: viewNames(),
			flags: func(set *flag.FlagSet, f *flags) {
				set.IntVar(&f.seconds, "seconds", 10, "how many `seconds` profile and trace take")
			},
			run: func(c *config.Config, f flags, out io.Writer) error { return look(c, f.word, f.seconds, out) }},
		{name: "completion", usage: "SHELL", about: "print a script that completes crispd's command line", words: cli.Shells,
			bare: func(f flags, out io.Writer) error {
				script, err := cli.Completion(commandLine(), f.word)
				if err == nil {
					_, err = io.WriteString(out, script)
				}
				return err
			}},
		{name: "version", about: "print the version",
			bare: func(_ flags, out io.Writer) error {
				_, err := fmt.Fprintf(out, "crispd %s %s %s/%s\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
				return err
			}},
	}
}

func run(args []string, out io.Writer) error {
	name := ""
	if len(args) > 0 && args[0] != "" && args[0][0] != '-' {
		name, args = args[0], args[1:]
	}
	if name == "serve" {
		name = ""
	}
	i := slices.IndexFunc(commands(), func(c command) bool { return c.name == name })
	if i < 0 {
		return fmt.Errorf("%q is not a command: there are %s", name, strings.Join(commandNames(), ", "))
	}
	c := commands()[i]
	f, err := parseFlags(c, args)
	if err != nil {
		return err
	}
	if c.bare != nil {
		return c.bare(f, out)
	}
	f.source.OwnCNI = beside("cni")
	loaded, err := config.Load(f.source)
	if err != nil {
		return err
	}
	return c.run(loaded, f, out)
}

func commandNames() []string {
	var names []string
	for _, c := range commands() {
		if c.name != "" {
			names = append(names, c.name)
		}
	}
	return names
}

type flags struct {
	source  config.Source
	word    string // the command's argument
	all     bool   // wipe: the root directory too
	seconds int    // debug: of a profile
}

// setOf is the flags of a command, which write to f.
func setOf(c command, f *flags) *flag.FlagSet {
	set := flag.NewFlagSet(strings.TrimSpace("crispd "+c.name), flag.ContinueOnError)
	if c.bare != nil {
		return set
	}
	set.StringVar(&f.source.File, "config", "", "configuration `file` (default "+config.DefaultFile+"), with drop-ins in config.d beside it")
	for name, usage := range map[string]string{
		"root":      "`directory` of what survives a reboot (default " + config.DefaultRoot + ")",
		"state":     "`directory` of what does not (default " + config.DefaultState + ")",
		"socket":    "unix socket `path` of the CRI (default crisp.sock in the state directory)",
		"log-level": "`level`: debug, info, warn or error (default info)",
	} {
		key := name
		if name == "log-level" {
			key = "log.level"
		}
		set.Func(name, usage, func(v string) error {
			f.source.Flags[key] = v
			return nil
		})
	}
	if c.flags != nil {
		c.flags(set, f)
	}
	return set
}

// parseFlags reads what follows the command: its argument, if it has one, and flags
// on either side of that.
func parseFlags(c command, args []string) (flags, error) {
	f := flags{source: config.Source{Flags: map[string]string{}}}
	set := setOf(c, &f)
	for {
		if err := set.Parse(args); err != nil {
			// The flag package has told it on standard error already.
			if errors.Is(err, flag.ErrHelp) {
				return f, err
			}
			return f, exitStatus(2)
		}
		if set.NArg() == 0 {
			break
		}
		if c.words == nil || f.word != "" {
			return f, fmt.Errorf("unexpected argument %q", set.Arg(0))
		}
		f.word, args = set.Arg(0), set.Args()[1:]
	}
	if c.words != nil && f.word == "" {
		return f, fmt.Errorf("%s needs to know what: %s", c.name, strings.Join(c.words, ", "))
	}
	return f, nil
}

// commandLine is all of it, for completion and the man page.
func commandLine() cli.Program {
	var f flags
	p := cli.Program{Name: "crispd", About: "the container runtime of a Kubernetes node", Flags: cli.FlagsOf(setOf(command{}, &f))}
	for _, c := range commands() {
		own := slices.DeleteFunc(cli.FlagsOf(setOf(c, &f)), func(f cli.Flag) bool { return slices.Contains(p.Flags, f) })
		p.Commands = append(p.Commands, cli.Command{Name: c.name, Usage: c.usage, About: c.about, Words: c.words, Flags: own, Bare: c.bare != nil})
	}
	return p
}
