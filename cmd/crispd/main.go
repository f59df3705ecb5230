// Command crispd is the daemon: it serves CRI on a unix socket and may be
// stopped, killed or replaced at any moment without a container noticing.
//
//	crispd [flags]             serve
//	crispd config [flags]      print the configuration in force and where it comes from
//	crispd check [flags]       tell what this host lacks and what follows from it
//	crispd wipe [flags]        end and remove everything of this instance
//	crispd debug WHAT [flags]  query the running crispd
//	crispd completion SHELL    print a script that completes these in a shell
//	crispd version             print the version
//
// This package only reads flags, wires the other packages together (wire.go) and handles signals
// (serve.go): SIGTERM and SIGINT end crispd cleanly, or else within seconds, and leave the containers
// running, SIGHUP reloads the configuration (reload.go), SIGUSR1 writes all goroutine stacks to a
// file in the state directory.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"github.com/crisp-cri/crisp/config"
	"github.com/crisp-cri/crisp/internal/cli"
	"github.com/crisp-cri/crisp/internal/rootless"
	"github.com/spf13/cobra"
)

// version is set by the linker.
var version = "unknown"

// exitStatus is an error that only sets the program's exit code.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// A usageError is an error in the command line.
type usageError struct{ error }

func main() {
	err := execute(os.Args[1:], os.Stdout, enterUser)
	if err == nil {
		return
	}
	if status, ok := errors.AsType[exitStatus](err); ok {
		os.Exit(int(status))
	}
	fmt.Fprintln(os.Stderr, "crispd:", err)
	if _, ok := errors.AsType[usageError](err); ok {
		os.Exit(2)
	}
	os.Exit(1)
}

func run(args []string, out io.Writer) error { return execute(args, out, nil) }

// execute is run; an ordinary user's command that needs a user namespace calls enter.
func execute(args []string, out io.Writer, enter func(c *config.Config, serve bool) error) error {
	root := commandLine(out, enter)
	root.SetArgs(cli.DoubleDashes(root, args))
	return root.Execute()
}

// commandLine returns the root command, whose commands print to out.
func commandLine(out io.Writer, enter func(c *config.Config, serve bool) error) *cobra.Command {
	source := config.Source{Flags: map[string]string{}}
	load := func() (*config.Config, error) {
		source.OwnCNI = beside("cni")
		if enter != nil && rootless.OfUser() {
			if err := userDefaults(&source); err != nil {
				return nil, err
			}
		}
		return config.Load(source)
	}
	// with returns a command that takes a configuration and no arguments.
	with := func(use, about string, do func(*config.Config) error) *cobra.Command {
		return &cobra.Command{Use: use, Short: about, Args: none, RunE: func(*cobra.Command, []string) error {
			c, err := load()
			if err == nil && enter != nil && os.Geteuid() != 0 {
				switch name, _, _ := strings.Cut(use, " "); name {
				case "serve":
					err = enter(c, true)
				case "check", "wipe":
					err = enter(c, false)
				}
			}
			if err != nil {
				return err
			}
			return do(c)
		}}
	}

	serving := with("serve [flags]", "serve CRI until SIGTERM (the default command); containers keep running",
		func(c *config.Config) error { return serve(c, source) })
	var all bool
	wiping := with("wipe [--all] [flags]", "end every container of this instance and remove what it made on the host",
		func(c *config.Config) error { return wipe(c, all, out) })
	wiping.Flags().BoolVar(&all, "all", false, "also remove the root directory with all images")

	root := &cobra.Command{Use: "crispd [flags]", Short: "the container runtime of a Kubernetes node", RunE: serving.RunE}
	root.SetOut(out)
	fs := root.PersistentFlags()
	fs.StringVar(&source.File, "config", "", "configuration `file` (default "+config.DefaultFile+"), with drop-ins in config.d next to it")
	for _, f := range []struct{ name, key, about string }{
		{"root", "root", "`directory` for state that survives a reboot (default " + config.DefaultRoot + ")"},
		{"state", "state", "`directory` for state that does not (default " + config.DefaultState + ")"},
		{"socket", "socket", "`path` of the CRI's Unix socket (default crisp.sock in the state directory)"},
		{"log-level", "log.level", "`level`: debug, info, warn or error (default info)"},
	} {
		fs.Func(f.name, f.about, func(v string) error {
			source.Flags[f.key] = v
			return nil
		})
	}
	root.AddCommand(
		serving,
		with("config [flags]", "print the configuration in force, and where each value comes from",
			func(c *config.Config) error { return c.Write(out) }),
		with("check [flags]", "report what this host lacks and what that means; exit with 1 if crispd cannot run here",
			func(c *config.Config) error { return check(c, out) }),
		wiping,
		debugCommand(load, out),
		&cobra.Command{Use: "version", Short: "print the version", Args: none, RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(out, "crispd %s %s %s/%s\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		}},
	)
	cli.Complete(root, usage, "")
	return root
}

// debugCommand queries the running crispd of the configuration.
func debugCommand(load func() (*config.Config, error), out io.Writer) *cobra.Command {
	var seconds int
	cmd := &cobra.Command{Use: "debug WHAT [--seconds N] [flags]", Short: "query the running crispd over its debug socket", ValidArgs: viewNames()}
	cmd.Flags().IntVar(&seconds, "seconds", 10, "how many `seconds` profile and trace take")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return usage("debug what? %s", strings.Join(viewNames(), ", "))
		case len(args) > 1:
			return usage("unexpected argument %q", args[1])
		}
		c, err := load()
		if err != nil {
			return err
		}
		return look(c, args[0], seconds, out)
	}
	return cmd
}

// none refuses arguments.
func none(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage("unexpected argument %q", args[0])
	}
	return nil
}

func usage(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }
