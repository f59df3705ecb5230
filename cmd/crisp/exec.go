package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/client-go/util/exec"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func execCommand(c *cli) *cobra.Command {
	var namespace, container string
	var interactive, tty bool
	cmd := &cobra.Command{Use: "exec [-i] [-t] [-c CONTAINER] POD [--] COMMAND [ARG...]", Short: "run a command in a container", Annotations: verbatim, ValidArgsFunction: c.completePod}
	fs := cmd.Flags()
	namespaceFlag(fs, &namespace)
	containerFlag(fs, &container)
	streamFlags(fs, &interactive, &tty, "connect standard input to the command", "allocate a terminal")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		// The command's own flags are not ours.
		before, command := behindDash(cmd, args)
		if len(before) > 1 && command == nil {
			before, command = before[:1], before[1:]
		}
		if len(before) != 1 || len(command) == 0 {
			return usageError("exec takes the name of a pod and a command")
		}
		return execError(c.exec(namespace, before[0], container, command, c.streams(interactive, tty)))
	}
	return cmd
}

// exec runs a command in a container, with those streams that there are.
func (c *cli) exec(namespace, name, container string, cmd []string, o remotecommand.StreamOptions) error {
	runtime, id, err := c.running(namespace, name, container)
	if err != nil {
		return err
	}
	resp, err := runtime.Exec(c.ctx, &cri.ExecRequest{
		ContainerId: id, Cmd: cmd, Tty: o.Tty, Stdin: o.Stdin != nil, Stdout: o.Stdout != nil, Stderr: o.Stderr != nil,
	})
	if err != nil {
		return criruntime.Fault(err)
	}
	return c.stream(resp.Url, o)
}

// streamFlags are -i and -t, of a command or a container.
func streamFlags(fs *pflag.FlagSet, interactive, tty *bool, stdinUsage, ttyUsage string) {
	fs.BoolVarP(interactive, "stdin", "i", false, stdinUsage)
	fs.BoolVarP(tty, "tty", "t", false, ttyUsage)
	fs.BoolVar(interactive, "interactive", false, "like --stdin, docker's name")
	fs.MarkHidden("interactive") // fails only for a flag that is not there
}

// streams are ours, as far as the container is to have them.
func (c *cli) streams(interactive, tty bool) remotecommand.StreamOptions {
	o := remotecommand.StreamOptions{Stdout: c.stdout, Tty: tty}
	if interactive {
		o.Stdin = c.stdin
	}
	if !tty {
		o.Stderr = c.stderr
	}
	return o
}

// stream connects streams with the command's, and the terminal if it has one.
func (c *cli) stream(address string, o remotecommand.StreamOptions) error {
	u, err := url.Parse(address)
	if err != nil {
		return err
	}
	// The URL holds a token that serves once, so no second protocol is tried.
	executor, err := remotecommand.NewSPDYExecutor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, "POST", u)
	if err != nil {
		return err
	}
	if !o.Tty {
		return executor.StreamWithContext(c.ctx, o)
	}
	in := terminal(c.stdin)
	if in == nil {
		fmt.Fprintln(c.stderr, "crisp: standard input is not a terminal")
		return executor.StreamWithContext(c.ctx, o)
	}
	old, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return err
	}
	defer term.Restore(int(in.Fd()), old)
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	o.TerminalSizeQueue = watchSize(ctx, in)
	return executor.StreamWithContext(ctx, o)
}

// execError gives the failure of an exec its exit code. The command's own code
// is passed on in silence. That a program is missing or not executable reaches
// us as a sentence only: CRI has no field for it.
func execError(err error) error {
	if err == nil {
		return nil
	}
	if code, ok := errors.AsType[utilexec.ExitError](err); ok && code.Exited() {
		return &exitError{code: code.ExitStatus()}
	}
	text := strings.TrimPrefix(err.Error(), "Internal error occurred: ") // the protocol's, not the runtime's
	for _, known := range []struct {
		code    int
		phrases []string
	}{
		{exitCommandMissing, []string{"executable file not found", "no such file or directory"}},
		{exitNotExecutable, []string{"permission denied", "exec format error", "is a directory"}},
	} {
		for _, phrase := range known.phrases {
			if strings.Contains(text, phrase) {
				return &exitError{known.code, text}
			}
		}
	}
	return &exitError{exitExecFailed, text}
}
