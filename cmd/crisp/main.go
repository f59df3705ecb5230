// Command crisp runs pods on this node without a cluster ("crisp agent") and is
// the command line for looking at them. All but agent ask the runtime alone, by
// CRI, so they work whether or not an agent runs.
//
// Each command is a file. This one finds it, and gives every failure its exit
// code (exit.go).
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"k8s.io/klog/v2"
)

// defaultEndpoint is crispd's socket.
const defaultEndpoint = "unix:///run/crisp/crisp.sock"

// defaultAgentRoot is the agent's own directory.
const defaultAgentRoot = "/var/lib/crisp-agent"

// A command is one verb of the command line.
type command struct {
	name  string
	usage string // what follows the name
	about string // one line
	// run does it. args are what follows the name, flags included.
	run func(c *cli, args []string) error
}

// cli is what all commands share.
type cli struct {
	ctx            context.Context
	endpoint       string
	agentRoot      string
	stdin          io.Reader
	stdout, stderr io.Writer
	cmd            command
}

var commands = []command{
	{"agent", "--manifests DIR [flags]", "run the pods of a directory of manifests", runAgent},
	{"get", "pods [NAME] [-n NAMESPACE | -A] [-o wide|json|yaml|name]", "list pods", runGet},
	{"logs", "POD [-c CONTAINER] [-f] [-p] [--tail N] [--since 5m] [--timestamps]", "print what a container wrote", runLogs},
	{"exec", "[-i] [-t] [-c CONTAINER] POD -- COMMAND [ARG...]", "run a command in a container", runExec},
	{"images", "[-o json]", "list images", runImages},
	{"image", "load -i FILE", "bring an image archive into the runtime, without a registry", runImage},
	{"pull", "IMAGE", "pull an image", runPull},
	{"rmi", "IMAGE...", "remove images", runRemoveImages},
	{"validate", "-f FILE", "check manifests without running them", runValidate},
	{"version", "", "print the versions of crisp and of the runtime", runVersion},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is main without the process.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	// The libraries of Kubernetes log by klog; what they have to say reaches
	// us as errors.
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	c := &cli{ctx: ctx, stdin: stdin, stdout: stdout, stderr: stderr}
	// CONTAINER_RUNTIME_ENDPOINT is crictl's.
	c.endpoint = cmp.Or(os.Getenv("CRISP_RUNTIME_ENDPOINT"), os.Getenv("CONTAINER_RUNTIME_ENDPOINT"), defaultEndpoint)
	c.agentRoot = cmp.Or(os.Getenv("CRISP_AGENT_ROOT"), defaultAgentRoot)
	err := c.dispatch(args)
	code := exitCode(err)
	if err != nil && !errors.Is(err, errHelp) {
		if text := err.Error(); text != "" {
			fmt.Fprintf(stderr, "crisp: %s\n", text)
		}
		if code == exitUsage && c.cmd.name != "" {
			fmt.Fprintf(stderr, "usage: crisp %s %s\n", c.cmd.name, c.cmd.usage)
		}
	}
	return code
}

func (c *cli) dispatch(args []string) error {
	global := c.flags("crisp")
	help := global.Bool("help", false, "")
	global.BoolVar(help, "h", false, "")
	if err := global.Parse(args); err != nil {
		return usageError("%v", err)
	}
	args = global.Args()
	if *help || len(args) == 0 || args[0] == "help" {
		return c.help(args)
	}
	i := slices.IndexFunc(commands, func(cmd command) bool { return cmd.name == args[0] })
	if i < 0 {
		return usageError("there is no command %q: see crisp help", args[0])
	}
	c.cmd = commands[i]
	return c.cmd.run(c, args[1:])
}

func (c *cli) help(args []string) error {
	if len(args) > 1 {
		if i := slices.IndexFunc(commands, func(cmd command) bool { return cmd.name == args[1] }); i >= 0 {
			c.cmd = commands[i]
			return c.cmd.run(c, []string{"--help"})
		}
		return usageError("there is no command %q: see crisp help", args[1])
	}
	fmt.Fprint(c.stdout, "crisp runs pods on one node, without a cluster.\n\nusage: crisp [--runtime-endpoint unix:///…] COMMAND\n\n")
	for _, cmd := range commands {
		fmt.Fprintf(c.stdout, "  %-10s %s\n", cmd.name, cmd.about)
	}
	fmt.Fprintf(c.stdout, "\n\"crisp help COMMAND\" tells more. The runtime is %s unless the flag or\nCRISP_RUNTIME_ENDPOINT says otherwise; the agent's own directory is %s\nunless CRISP_AGENT_ROOT says otherwise.\n", defaultEndpoint, defaultAgentRoot)
	fmt.Fprintf(c.stdout, "\nexit codes: %s\n", strings.TrimSpace(exitCodes))
	return nil
}
