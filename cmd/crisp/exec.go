package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
	"golang.org/x/term"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
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
	return runs(cmd, func(args []string) error {
		// The flags of the command are not ours.
		before, command := behindDash(cmd, args)
		if len(before) > 1 && command == nil {
			before, command = before[:1], before[1:]
		}
		if len(before) != 1 || len(command) == 0 {
			return usageError("exec takes the name of a pod and a command")
		}
		return execError(c.exec(namespace, before[0], container, command, c.streams(interactive, tty)))
	})
}

// exec runs a command in a container with the streams that o has.
func (c *cli) exec(namespace, name, container string, cmd []string, o remotecommand.StreamOptions) error {
	id, err := c.running(namespace, name, container)
	if err != nil {
		return err
	}
	resp, err := c.runtime.Exec(c.ctx, &cri.ExecRequest{
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

func attachCommand(c *cli) *cobra.Command {
	var namespace, container string
	var interactive, tty bool
	cmd := &cobra.Command{Use: "attach [-i] [-t] [-c CONTAINER] POD", Args: takes(1, 1, "attach takes the name of one pod"), Short: "attach to a running container", ValidArgsFunction: c.completePod}
	fs := cmd.Flags()
	namespaceFlag(fs, &namespace)
	containerFlag(fs, &container)
	streamFlags(fs, &interactive, &tty, "connect standard input to the container", "the container has a terminal")
	return runs(cmd, func(rest []string) error {
		return execError(c.attach(namespace, rest[0], container, interactive, tty))
	})
}

// attach connects our streams to a container's.
func (c *cli) attach(namespace, name, container string, interactive, tty bool) error {
	id, err := c.running(namespace, name, container)
	if err != nil {
		return err
	}
	resp, err := c.runtime.Attach(c.ctx, &cri.AttachRequest{
		ContainerId: id, Tty: tty, Stdin: interactive, Stdout: true, Stderr: !tty,
	})
	if err != nil {
		return criruntime.Fault(err)
	}
	return c.stream(resp.Url, c.streams(interactive, tty))
}

// terminal returns the file of a stream if it is a terminal, else nil.
func terminal(stream any) *os.File {
	if f, ok := stream.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return f
	}
	return nil
}

// sizes yields the size of a terminal at first and after each change; nil means the end.
type sizes func() *remotecommand.TerminalSize

// Next implements remotecommand.TerminalSizeQueue.
func (s sizes) Next() *remotecommand.TerminalSize { return s() }

func watchSize(ctx context.Context, f *os.File) sizes {
	changes := make(chan os.Signal, 1)
	changes <- unix.SIGWINCH // for the initial size
	signal.Notify(changes, unix.SIGWINCH)
	context.AfterFunc(ctx, func() { signal.Stop(changes) })
	return func() *remotecommand.TerminalSize {
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-changes:
				if width, height, err := term.GetSize(int(f.Fd())); err == nil {
					return &remotecommand.TerminalSize{Width: uint16(width), Height: uint16(height)}
				}
			}
		}
	}
}

func portForwardCommand(c *cli) *cobra.Command {
	var namespace, address string
	cmd := &cobra.Command{Use: "port-forward POD [LOCAL:]PORT...", Args: takes(2, many, "port-forward takes the name of a pod and ports: web 8080:80"), Short: "forward local ports to a pod", ValidArgsFunction: c.completePod}
	fs := cmd.Flags()
	namespaceFlag(fs, &namespace)
	fs.StringVar(&address, "address", "localhost", "comma-separated `addresses` to listen on")
	return runs(cmd, func(args []string) error {
		f, err := c.connectToPod(namespace, args[0])
		if err != nil {
			return err
		}
		if len(f.Have.Sandboxes) == 0 || !f.Have.Sandboxes[0].Ready {
			return fault.WrongState.Errorf("pod %s does not run", f.Pod.Name)
		}
		resp, err := c.runtime.PortForward(c.ctx, &cri.PortForwardRequest{PodSandboxId: f.Have.Sandboxes[0].ID})
		if err != nil {
			return criruntime.Fault(err)
		}
		return c.forward(resp.Url, strings.Split(address, ","), args[1:])
	})
}

// forward forwards local ports until it is interrupted.
func (c *cli) forward(to string, addresses, ports []string) error {
	u, err := url.Parse(to)
	if err != nil {
		return err
	}
	transport, upgrader, err := spdy.RoundTripperFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	if err != nil {
		return err
	}
	dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, u)
	ready := make(chan struct{})
	forwarder, err := portforward.NewOnAddresses(dialer, addresses, ports, c.ctx.Done(), ready, c.stdout, c.stderr)
	if err != nil {
		return usageError("%v", err)
	}
	if err := forwarder.ForwardPorts(); err != nil && c.ctx.Err() == nil {
		return err
	}
	return nil
}

// debugCommand adds an ephemeral container to a pod.
func debugCommand(c *cli) *cobra.Command {
	var namespace, image, target, name, pull string
	var interactive, tty bool
	cmd := &cobra.Command{Use: "debug POD --image IMAGE [--target CONTAINER] [-i] [-t] [-- COMMAND...]", Short: "add an ephemeral container to a running pod", ValidArgsFunction: c.completePod}
	fs := cmd.Flags()
	namespaceFlag(fs, &namespace)
	fs.StringVar(&image, "image", "", "`image` of the new container")
	fs.StringVar(&target, "target", "", "see the processes of this `container`")
	fs.StringVarP(&name, "container", "c", "", "`name` of the new container (default: generated)")
	fs.StringVar(&pull, "pull", "", "`policy`: Always, IfNotPresent or Never")
	streamFlags(fs, &interactive, &tty, "connect standard input and attach", "allocate a terminal")
	return runs(cmd, func(args []string) error {
		rest, command := behindDash(cmd, args)
		if len(rest) != 1 || image == "" {
			return usageError("debug takes the name of a pod and --image IMAGE")
		}
		all, err := c.anyPods()
		if err != nil {
			return err
		}
		f, err := c.pick(all, namespace, rest[0])
		if err != nil {
			return err
		}
		path := pathOf(podKind, namespace, f.Pod.Name)
		var pod v1.Pod
		if err := c.fetch(path, nil, &pod); err != nil {
			return err
		}
		if name == "" {
			name = "debugger-" + strings.ToLower(rand.Text()[:5])
		}
		pod.Spec.EphemeralContainers = append(pod.Spec.EphemeralContainers, v1.EphemeralContainer{
			TargetContainerName: target,
			EphemeralContainerCommon: v1.EphemeralContainerCommon{
				Name: name, Image: image, Command: command, Stdin: interactive, StdinOnce: interactive, TTY: tty,
				ImagePullPolicy: v1.PullPolicy(pull),
			},
		})
		if _, err := c.send(http.MethodPut, path+"/ephemeralcontainers", nil, &pod, nil); err != nil {
			return err
		}
		if _, err = c.untilPod(namespace, pod.Name, 5*time.Minute, "container "+name+" has not started", func(now *v1.Pod) (bool, error) {
			state := statusOf(now, name).State
			if w := state.Waiting; w != nil && w.Message != "" {
				return false, fault.WrongState.Errorf("container %s: %s: %s", name, w.Reason, w.Message)
			}
			return state.Running != nil || state.Terminated != nil, nil
		}); err != nil {
			return err
		}
		if !interactive && !tty {
			fmt.Fprintf(c.stdout, "%s/%s started\n", pod.Name, name)
			return nil
		}
		return execError(c.attach(namespace, pod.Name, name, interactive, tty))
	})
}

// checkpointCommand makes the runtime write a checkpoint archive of a container.
func checkpointCommand(c *cli) *cobra.Command {
	var namespace, container string
	cmd := &cobra.Command{Use: "checkpoint POD [-c CONTAINER]", Args: takes(1, 1, "checkpoint takes the name of one pod"), Short: "write a checkpoint archive of a container", ValidArgsFunction: c.completePod}
	fs := cmd.Flags()
	namespaceFlag(fs, &namespace)
	containerFlag(fs, &container)
	return runs(cmd, func(rest []string) error {
		f, err := c.connectToPod(namespace, rest[0])
		if err != nil {
			return err
		}
		status, err := c.container(f, container)
		if err != nil {
			return err
		}
		var answer struct{ Items []string }
		if _, err := c.send(http.MethodPost, "/checkpoint/"+f.Pod.Namespace+"/"+f.Pod.Name+"/"+status.Name, nil, nil, &answer); err != nil {
			return err
		}
		for _, path := range answer.Items {
			fmt.Fprintln(c.stdout, path)
		}
		return nil
	})
}
