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
	"flag"
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
	see            func(*flag.FlagSet) // who asked for a command's flags instead of its help
}

var commands = []command{
	{"agent", "--manifests DIR [flags]", "run the pods of a directory of manifests", runAgent},
	{"apply", "-f FILE... [--wait] [--prune]", "have the agent run what manifests say", runApply},
	{"validate", "-f FILE", "check manifests without running them", runValidate},
	{"run", "[-i] [-t] [--rm] [-p 8080:80] [-v /h:/c] [-e K=V] IMAGE [-- ARG...]", "run a pod of one container", runRun},
	{"get", "pods|TYPE [NAME...] [-n NAMESPACE | -A] [-o wide|json|yaml|name|jsonpath=…] [-w]", "list pods and other objects", runGet},
	{"ps", "[-A] [-a]", "list containers", runContainers},
	{"describe", "pod/NAME|TYPE/NAME", "tell all that is known of an object", runDescribe},
	{"logs", "POD [-c CONTAINER] [-f] [-p] [--tail N] [--since 5m] [--timestamps] [--all-containers]", "print what a container wrote", runLogs},
	{"exec", "[-i] [-t] [-c CONTAINER] POD -- COMMAND [ARG...]", "run a command in a container", runExec},
	{"attach", "[-i] [-t] [-c CONTAINER] POD", "connect with a container that runs", runAttach},
	{"cp", "POD:PATH FILE | FILE POD:PATH", "copy files from or to a container", runCopy},
	{"port-forward", "POD [LOCAL:]PORT...", "serve ports of a pod on this machine", runPortForward},
	{"debug", "POD --image IMAGE [--target CONTAINER] [-i] [-t] [-- COMMAND...]", "add a container to a pod that runs", runDebug},
	{"delete", "pod/NAME|TYPE/NAME | -f FILE [--grace-period N] [--force] [--remove-manifest]", "delete objects", runDelete},
	{"stop", "pod/NAME", "delete a pod, as delete does: what was applied or run is gone for good, what comes from a manifest is only ended with --remove-manifest", runStop},
	{"restart", "POD [-c CONTAINER]", "end the containers of a pod, which start again", runRestart},
	{"wait", "pod/NAME --for=Ready|delete|phase=PHASE [--timeout 30s]", "wait for what a pod is to be", runWait},
	{"events", "[--for pod/NAME] [-w]", "tell what has happened", runEvents},
	{"top", "pods [NAME] [--containers]", "show what pods use", runTop},
	{"status", "[-o json]", "show the agent, its runtime, the node and the sources", runStatus},
	{"sources", "", "show each manifest: what it defines, and what is wrong with it", runSources},
	{"doctor", "", "check what pods need of this node", runDoctor},
	{"images", "[-o json]", "list images", runImages},
	{"image", "load -i FILE | prune", "bring an image archive into the runtime, without a registry, or remove what nobody uses", runImage},
	{"pull", "IMAGE", "pull an image", runPull},
	{"rmi", "IMAGE...", "remove images", runRemoveImages},
	{"export", "TYPE/NAME", "print an object as a manifest", runExport},
	{"generate", "systemd", "print a unit for the agent", runGenerate},
	{"checkpoint", "POD [-c CONTAINER]", "write a checkpoint archive of a container", runCheckpoint},
	{"config", "view", "show how the agent is configured", runConfig},
	{"version", "", "print the versions of crisp and of the runtime", runVersion},
}

// The libraries of Kubernetes log by klog; what they have to say reaches us as errors.
// klog has one logger for the process, and none may be using it when it is set.
func init() { klog.SetSlogLogger(slog.New(slog.DiscardHandler)) }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second interrupt ends us at once
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is main without the process.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
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
		fmt.Fprintf(c.stdout, "  %-12s %s\n", cmd.name, cmd.about)
	}
	fmt.Fprintf(c.stdout, "\n\"crisp help COMMAND\" tells more. The runtime is %s unless the flag or\nCRISP_RUNTIME_ENDPOINT says otherwise; the agent's own directory is %s\nunless CRISP_AGENT_ROOT says otherwise.\n", defaultEndpoint, defaultAgentRoot)
	fmt.Fprintf(c.stdout, "\nexit codes: %s\n", strings.TrimSpace(exitCodes))
	return nil
}
