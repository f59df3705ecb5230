// Command crispd is the daemon: it serves CRI on a unix socket and may be
// stopped, killed or replaced at any moment without a container noticing.
//
//	crispd [flags]          serve
//	crispd config [flags]   print the configuration in force and where it comes from
//	crispd check [flags]    tell what this host lacks and what follows from it
//	crispd wipe [flags]     end and remove everything of this instance
//	crispd version          print the version
//
// This package only reads flags, wires the other packages together (wire.go) and
// passes signals on (serve.go): SIGTERM and SIGINT end crispd cleanly and leave the
// containers running, SIGUSR1 writes all goroutine stacks to a file in the state
// directory.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/crisp-cri/crisp/config"
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

func run(args []string, out io.Writer) error {
	command := "serve"
	if len(args) > 0 && args[0] != "" && args[0][0] != '-' {
		command, args = args[0], args[1:]
	}
	if command == "version" {
		fmt.Fprintf(out, "crispd %s %s %s/%s\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
		return nil
	}
	f, err := parseFlags(command, args)
	if err != nil {
		return err
	}
	src := f.source
	src.OwnCNI = beside("cni")
	c, err := config.Load(src)
	if err != nil {
		return err
	}
	switch command {
	case "serve":
		return serve(c)
	case "config":
		return c.Write(out)
	case "check":
		return check(c, out)
	case "wipe":
		return wipe(c, f.all, out)
	}
	return fmt.Errorf("%q is not a command: there are config, check, wipe and version", command)
}

type flags struct {
	source config.Source
	all    bool // wipe: the root directory too
}

func parseFlags(command string, args []string) (flags, error) {
	f := flags{source: config.Source{Flags: map[string]string{}}}
	set := flag.NewFlagSet("crispd "+command, flag.ContinueOnError)
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
	if command == "wipe" {
		set.BoolVar(&f.all, "all", false, "remove the root directory too: images and all")
	}
	if err := set.Parse(args); err != nil {
		// The flag package has told it on standard error already.
		if errors.Is(err, flag.ErrHelp) {
			return f, err
		}
		return f, exitStatus(2)
	}
	if set.NArg() > 0 {
		return f, fmt.Errorf("unexpected argument %q", set.Arg(0))
	}
	return f, nil
}
