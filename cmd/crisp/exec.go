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
		// The flags of the command are not ours.
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

// exec runs a command in a container with the streams that o has.
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

// streamFlags adds -i and -t.
func streamFlags(fs *pflag.FlagSet, interactive, tty *bool, stdinUsage, ttyUsage string) {
	fs.BoolVarP(interactive, "stdin", "i", false, stdinUsage)
	fs.BoolVarP(tty, "tty", "t", false, ttyUsage)
	fs.BoolVar(interactive, "interactive", false, "like --stdin, docker's name")
	fs.MarkHidden("interactive") // fails only if there is no such flag
}

// streams returns our streams for the container: standard input only if interactive, no standard
// error with a terminal.
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

// stream connects streams to the command's, and the terminal if it has one.
func (c *cli) stream(address string, o remotecommand.StreamOptions) error {
	u, err := url.Parse(address)
	if err != nil {
		return err
	}
	// The URL has a one-time token, so there can be no second attempt with another protocol.
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

// execError converts an error of exec to an exit code. The exit code of the command itself is
// passed on without a message. CRI has no field for a program that is missing or not executable, so
// that is recognized by the message.
func execError(err error) error {
	if err == nil {
		return nil
	}
	if code, ok := errors.AsType[utilexec.ExitError](err); ok && code.Exited() {
		return &exitError{code: code.ExitStatus()}
	}
	text := strings.TrimPrefix(err.Error(), "Internal error occurred: ") // a prefix of the protocol, not of the runtime
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
