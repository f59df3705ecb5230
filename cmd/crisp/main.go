// Command crisp runs pods on this node without a cluster ("crisp agent") and is the command line
// for them. Commands that change pods, or show other objects, ask the agent by its API (api.go).
// Commands that show pods, containers and images ask the runtime over CRI (client.go), so that they
// work without an agent, as they must when it is what is broken: get pods, ps, describe, logs, exec,
// attach, cp, port-forward, top pods, stats, inspect, why, and all about images. Those merge what an
// agent knows, if one runs. Three things have no place in either, and are read or done directly:
//
//	image load, save, tag; the progress of pulls   services of crispd, which CRI does not have
//	events, and pods that wait, without an agent   the files that it has left
//	system prune --volumes                         the content of a claim that is deleted
//
// A new command is a function that returns it, a name in groups, and for something new
// to do a path of the API (apiserver/api). Every error becomes an exit code (exitCode).
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/manifest"
	cmdline "github.com/crisp-cri/crisp/internal/cli"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/spf13/cobra"
	internalapi "k8s.io/cri-api/pkg/apis"
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

	runtime internalapi.RuntimeService // set by connect
	store   internalapi.ImageManagerService
}

// groups has the commands as help, docs/commands.md and the man page show them. A command stands in
// a file of its name, or with its kin: restart, start and drain with stop, attach, port-forward,
// debug and checkpoint with exec, ps with table, watches with get, events with logs, stats with top,
// rollout with wait, why with describe, doctor, sources, config and page with status, export with generate.
var groups = []struct {
	title    string // with an example
	commands []func(*cli) *cobra.Command
}{
	{"run and look (crisp run -it --rm busybox sh)", []func(*cli) *cobra.Command{
		runCommand, getCommand, psCommand, describeCommand, whyCommand, logsCommand, eventsCommand, topCommand, statsCommand, inspectCommand,
		execCommand, attachCommand, cpCommand, portForwardCommand, debugCommand,
	}},
	{"change (crisp apply -f web.yaml --wait)", []func(*cli) *cobra.Command{
		applyCommand, deleteCommand, stopCommand, startCommand, restartCommand, rolloutCommand, checkpointCommand,
	}},
	{"node (crisp agent --manifests /etc/crisp/pods)", []func(*cli) *cobra.Command{
		agentCommand, statusCommand, sourcesCommand, pageCommand, doctorCommand, configCommand, drainCommand, uncordonCommand, systemCommand,
	}},
	{"images (crisp pull docker.io/library/nginx:1.29)", []func(*cli) *cobra.Command{imagesCommand, imageCommand, pullCommand, rmiCommand, loginCommand, logoutCommand}},
	{"for scripts (crisp wait pod/web --for=Ready --timeout 1m)", []func(*cli) *cobra.Command{validateCommand, waitCommand, exportCommand, generateCommand, versionCommand}},
}

// aliases has other names of commands.
var aliases = map[string][]string{"delete": {"rm"}}

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
	root.SetArgs(c.noteUnknown(root, arrange(root, args)))
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
		Short: "run pods on one node without a cluster, and inspect them", Version: crispVersion(),
	}
	own := c.places()
	// CONTAINER_RUNTIME_ENDPOINT is crictl's variable.
	endpoint := cmp.Or(os.Getenv("CRISP_RUNTIME_ENDPOINT"), os.Getenv("CONTAINER_RUNTIME_ENDPOINT"), own.endpoint)
	fs := root.PersistentFlags()
	fs.StringVar(&c.endpoint, "runtime-endpoint", endpoint, "`socket` of the CRI runtime")
	fs.StringVar(&c.endpoint, "container-runtime-endpoint", endpoint, "the same `socket`, the kubelet's name")
	fs.StringVar(&c.agentRoot, "agent-root", cmp.Or(os.Getenv("CRISP_AGENT_ROOT"), own.agentRoot), "the agent's `directory`, which contains its socket")
	for _, g := range groups {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
		for _, command := range g.commands {
			cmd := command(c)
			cmd.GroupID, cmd.Aliases = g.title, aliases[cmd.Name()]
			c.completeFlags(cmd)
			root.AddCommand(cmd)
		}
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

// runs returns cmd with what it does with its arguments.
func runs(cmd *cobra.Command, run func(args []string) error) *cobra.Command {
	cmd.RunE = func(_ *cobra.Command, args []string) error { return run(args) }
	return cmd
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

const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitInvalid     = 4
	exitTimeout     = 5
	exitUnreachable = 6

	// For exec, as in docker and podman:
	exitExecFailed     = 125 // we could not run the command
	exitNotExecutable  = 126
	exitCommandMissing = 127
)

const exitCodes = `
0 ok, 1 failure, 2 usage, 3 not found, 4 manifest rejected, 5 timed out,
6 runtime or agent not reachable. exec exits with the command's own code (128+n for signal n), or with 125
if it could not run it, 126 if it is not executable, 127 if it does not exist.
`

// An exitError ends crisp with its code; without text it prints nothing.
type exitError struct {
	code int
	text string
}

func (e *exitError) Error() string { return e.text }

func usageError(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Sprintf(format, args...)}
}

func exitCode(err error) int {
	if err == nil {
		return exitOK
	}
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.code
	}
	if _, ok := errors.AsType[manifest.Errors](err); ok {
		return exitInvalid
	}
	switch {
	case errors.Is(err, fault.NotFound):
		return exitNotFound
	case errors.Is(err, fault.Unavailable):
		return exitUnreachable
	}
	return exitFailure
}

// version is set by the linker. With a plain "go build" it is empty, and the version comes from the
// build info.
var version = ""

func crispVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}

// versionCommand prints our own version even if the runtime does not answer, which is then an
// error.
func versionCommand(c *cli) *cobra.Command {
	var output string
	cmd := &cobra.Command{Use: "version", Args: takesNone(""), Short: "print the versions of crisp and of the runtime"}
	fs := cmd.Flags()
	outputFlag(fs, &output, "json")
	return runs(cmd, func(_ []string) error {
		versions := map[string]string{"crisp": crispVersion()}
		err := c.connect()
		if err == nil {
			v, rpcErr := c.runtime.Version(c.ctx, "")
			err = criruntime.Fault(rpcErr)
			versions["runtime"], versions["runtimeVersion"], versions["cri"] = v.GetRuntimeName(), v.GetRuntimeVersion(), v.GetRuntimeApiVersion()
		}
		if output == "json" {
			return cmp.Or(c.printValue(versions, output), err)
		}
		fmt.Fprintf(c.stdout, "crisp    %s\n", versions["crisp"])
		if err == nil {
			fmt.Fprintf(c.stdout, "runtime  %s %s (CRI %s)\n", versions["runtime"], versions["runtimeVersion"], versions["cri"])
		}
		return err
	})
}
