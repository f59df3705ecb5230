// Command crisp runs pods on this node without a cluster ("crisp agent") and is the command line
// for them. Commands that show pods, containers and images ask the runtime over CRI, so they work
// without an agent; commands that change pods, or show other objects, ask the agent.
//
// Each command has a file. This one selects the command, and converts every error to an exit code
// (exit.go).
package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	cmdline "github.com/crisp-cri/crisp/internal/cli"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
)

// defaultEndpoint is crispd's socket.
const defaultEndpoint = "unix:///run/crisp/crisp.sock"

// defaultAgentRoot is the agent's directory.
const defaultAgentRoot = "/var/lib/crisp-agent"

// cli has what all commands share.
type cli struct {
	ctx            context.Context
	endpoint       string
	agentRoot      string
	stdin          io.Reader
	stdout, stderr io.Writer
}

// verbs has the commands in the order of the help.
var verbs = []func(*cli) *cobra.Command{
	agentCommand, applyCommand, validateCommand, runCommand, editCommand, setCommand, scaleCommand, rolloutCommand, getCommand, psCommand, describeCommand, whyCommand, logsCommand,
	execCommand, attachCommand, cpCommand, portForwardCommand, debugCommand, deleteCommand, stopCommand, startCommand,
	restartCommand, drainCommand, uncordonCommand, waitCommand, eventsCommand, topCommand, statsCommand, systemCommand, statusCommand, pageCommand, sourcesCommand, doctorCommand,
	inspectCommand, imagesCommand, imageCommand, pullCommand, rmiCommand, loginCommand, logoutCommand, exportCommand, generateCommand, checkpointCommand,
	configCommand, versionCommand,
}

// The libraries of Kubernetes log with klog; they also return what matters as errors. klog has one
// logger per process, and setting it while it is in use is a race.
func init() { klog.SetSlogLogger(slog.New(slog.DiscardHandler)) }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second interrupt kills the process
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is main without its process: it returns the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	c := &cli{ctx: ctx, stdin: stdin, stdout: stdout, stderr: stderr}
	root := c.root()
	root.SetArgs(c.withoutUnknown(root, arrange(root, args)))
	cmd, err := root.ExecuteContextC(ctx)
	code := exitCode(err)
	if err != nil {
		if text := err.Error(); text != "" {
			fmt.Fprintf(stderr, "crisp: %s\n", text)
		}
		if code == exitUsage && cmd != root {
			fmt.Fprintf(stderr, "usage: %s\n", cmd.UseLine())
		}
	}
	return code
}

// root returns the root command.
func (c *cli) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "crisp [--runtime-endpoint unix:///…] COMMAND",
		Short: "run pods on one node without a cluster, and inspect them",
	}
	// CONTAINER_RUNTIME_ENDPOINT is crictl's variable.
	endpoint := cmp.Or(os.Getenv("CRISP_RUNTIME_ENDPOINT"), os.Getenv("CONTAINER_RUNTIME_ENDPOINT"), defaultEndpoint)
	fs := root.PersistentFlags()
	fs.StringVar(&c.endpoint, "runtime-endpoint", endpoint, "`socket` of the CRI runtime")
	fs.StringVar(&c.endpoint, "container-runtime-endpoint", endpoint, "the same `socket`, the kubelet's name")
	fs.StringVar(&c.agentRoot, "agent-root", cmp.Or(os.Getenv("CRISP_AGENT_ROOT"), defaultAgentRoot), "the agent's `directory`, which contains its socket")
	for _, verb := range verbs {
		cmd := verb(c)
		c.completeFlags(cmd)
		root.AddCommand(cmd)
	}
	root.SetOut(c.stdout)
	root.SetErr(c.stderr)
	cmdline.Complete(root, usageError, fmt.Sprintf(`See "crisp help COMMAND". The default runtime is %s: change it with the flag or
CRISP_RUNTIME_ENDPOINT. The agent's default directory is %s:
change it with CRISP_AGENT_ROOT.

exit codes: %s`, defaultEndpoint, defaultAgentRoot, strings.TrimSpace(exitCodes)))
	return root
}

// verbatim marks a command whose last arguments are another command line, as in docker: flags after
// the first argument are not ours, unless "--" marks the start of the other command line.
var verbatim = map[string]string{"verbatim": "true"}

// arrange prepares the arguments of crisp for the command that they name.
func arrange(root *cobra.Command, args []string) []string {
	cmd, rest, err := root.Find(args)
	if err != nil || cmd.Annotations["verbatim"] == "" {
		return cmdline.DoubleDashes(root, args)
	}
	cmd.Flags().SetInterspersed(slices.Contains(rest, "--"))
	return args
}

// behindDash splits the arguments of cmd at "--". Without it behind is nil.
func behindDash(cmd *cobra.Command, args []string) (before, behind []string) {
	if n := cmd.ArgsLenAtDash(); n >= 0 {
		return args[:n], append([]string{}, args[n:]...)
	}
	return args, nil
}

// many means no limit of arguments.
const many = math.MaxInt

// takes rejects fewer arguments than least and more than most; wrong is the error text.
func takes(least, most int, wrong string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return usageError("%s", wrong)
		}
		return nil
	}
}

// takesNone rejects arguments; hint, if any, is added to the error.
func takesNone(hint string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return usageError("%s takes no argument %q%s", strings.TrimPrefix(cmd.CommandPath(), "crisp "), args[0], hint)
		}
		return nil
	}
}
