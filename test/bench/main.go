// Command bench measures CRI runtimes side by side.
//
// All endpoints get the same calls over the same socket protocol that the kubelet uses, in one run,
// and in turns: a sample of one, the same sample of the next, and so on, in a new random order for
// each sample. If the speed of the machine drifts, it affects all of them alike. So compare ratios
// within one table, never figures of two tables.
//
// A run has these phases, always in this order. Each starts and ends without pods of its own:
//
//	memory      PSS and private memory of the runtime's processes with 0 pods and with -pods pods; the first phase, so that
//	            no heap has grown from other work
//	list        ListContainers, ListPodSandbox and the stats of both while those pods are there
//	exec        ExecSync of true in a restricted container and in one without seccomp: its time, and the CPU time, user and system,
//	            that the whole machine needs for it
//	lifecycle   a restricted pod with one container up and down, call by call, one after the other
//	plain       the same without seccomp, on the host's network
//	terminal    a restricted pod whose container has a terminal, and how long after the call of Exec the first byte of a shell with a terminal
//	            comes through the streaming server
//	userns      a restricted pod in a user namespace, with an ExecSync of true in between
//	limit       the same calls on the host's network, next to a C program that makes only what the kernel must (limit/limit.c)
//	handlers    a restricted pod with each endpoint's default network up and down, with an ExecSync of true in between; once for each
//	            handler in -handlers, which all endpoints have
//	churn       whole restricted pods up and down per second, by -workers workers
//	probes      -probe-pods restricted pods with an exec probe each second: how many are answered, and the CPU time it needs
//	pull        PullImage of -pull-image, and of -layer-image; it is removed, and the disk quiet, before each pull. PSS when the last is over
//	beside      a restricted pod up and down, one after the other, while its runtime pulls -pull-image, -pulls times
//	engine      what an OCI runtime alone needs for a restricted container, for each -engine
//	commands    one pod up, exec of true in it, the pod down, and a pull, as commands of each -commands, which may be what runs without root
//	many        pod up, ExecSync, lists, stats, memory and the daemon's start with each number of pods in -many
//
// lifecycle and churn run once for each network in -nets: "host" is a pod in the node's network namespace, "bridge" one that gets its
// network from the same CNI configuration at every endpoint (the handler of bridge=, where that is not the endpoint's default), and
// "default" one with each endpoint's default network.
//
// A restricted pod is what the Pod Security Standard of that name wants: no root, no capabilities, no new privileges, and the runtime's
// default seccomp profile. Otherwise a pod is what the kubelet would ask for: a PID namespace per container, a log directory, masked
// paths, one container that runs sleep. It is stopped with a grace period of 0, because PID 1 of busybox ignores SIGTERM and waiting for
// the grace period would measure the clock.
//
// A runtime's processes are those with the PIDs given with its endpoint and those of the given executables (shims and monitors that
// have PID 1 as their parent), and everything below them but the containers' own sleep. Pause processes are the runtime's cost, not a payload.
// CPU time is the machine's, less the bench's own: nothing else may run.
//
// What a runtime's disk is decides its rows next to pulls: ./journal gives it an ext4 with a journal.
//
// With -json a run adds its samples to those that the file has already, of the same versions on the same machine, and the table is made
// from all of them: a long bench can be run a few phases at a time. The table has the p50 of each row and, in brackets, p10 and p90;
// of pods beside pulls p90 and p99.
//
// Pods carry a label. Whatever carries it is removed before the run and after it, also when the run failed or was interrupted. So two
// benches cannot use one endpoint at once.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

type options struct {
	endpoints    []endpoint
	engines      []engine
	commandLines []commandLine
	subject      string
	image        string
	pullImage    string
	layerImage   string
	rootfs       string
	cgroupParent string
	phases       []string
	nets         []string
	handlers     []string
	rounds       int
	execs        int
	lists        int
	pods         int
	workers      int
	batch        int
	batches      int
	probePods    int
	probeSeconds int
	pulls        int
	many         []int
	manyNet      string
	settle       time.Duration
	json         string
	plot         string
}

func main() {
	opts, err := parseFlags(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
		context.AfterFunc(ctx, stop) // a second signal ends the cleanup, too
		err = run(ctx, opts)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func parseFlags(args []string) (options, error) {
	var o options
	var phases, nets, many, handlers string
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.Func("endpoint", "`name=unix:///path.sock[,pid=N][,pidfile=FILE][,exe=NAME[@TEXT]][,bridge=HANDLER][,ctl=FILE]`; repeat it for each runtime", func(s string) error {
		e, err := parseEndpoint(s)
		o.endpoints = append(o.endpoints, e)
		return err
	})
	fs.Func("engine", "`name=/path[,pid=N]` of an OCI runtime to measure alone, in the mount namespace of a process; repeat it for each", func(s string) error {
		e, err := parseEngine(s)
		o.engines = append(o.engines, e)
		return err
	})
	fs.Func("commands", "`name=/path` of a script with what a user types (commands/*.sh); repeat it for each", func(s string) error {
		c, err := parseCommandLine(s)
		o.commandLines = append(o.commandLines, c)
		return err
	})
	fs.StringVar(&o.subject, "subject", "", "endpoint that the others are the peers of, but those whose names begin with its own and a dash, which are variants of it; may be one of which only -json has samples (default the first)")
	fs.StringVar(&o.image, "image", "registry.k8s.io/e2e-test-images/busybox:1.29-2", "image of the containers; it needs sleep and true")
	fs.StringVar(&o.pullImage, "pull-image", "", "image to measure pulls of; none, no phases pull and beside")
	fs.StringVar(&o.layerImage, "layer-image", "", "image with one large layer, to measure pulls of, too")
	fs.StringVar(&o.rootfs, "rootfs", "", "`directory` with static /bin/sleep and /bin/true for -engine and the limit phase")
	fs.StringVar(&o.cgroupParent, "cgroup-parent", "/crisp-bench", "cgroup parent of the pods; removed at the end")
	fs.StringVar(&phases, "phases", strings.Join(allPhases, ","), "phases to run; none: print the table of -json")
	fs.StringVar(&nets, "nets", strings.Join(allNets, ","), "networks to run lifecycle and churn with")
	fs.StringVar(&handlers, "handlers", "", "runtime handlers to run the handlers phase with; none, no such phase")
	fs.IntVar(&o.rounds, "rounds", 20, "rounds of lifecycle, plain, handlers, terminal, userns and limit")
	fs.IntVar(&o.execs, "execs", 10, "blocks of ten ExecSync calls")
	fs.IntVar(&o.lists, "lists", 20, "calls of each list")
	fs.IntVar(&o.pods, "pods", 50, "pods of the memory and list phases")
	fs.IntVar(&o.workers, "workers", 10, "workers of the churn phase")
	fs.IntVar(&o.batch, "batch", 30, "pods of one churn sample")
	fs.IntVar(&o.batches, "batches", 10, "churn samples")
	fs.IntVar(&o.probePods, "probe-pods", 100, "pods of the probes phase")
	fs.IntVar(&o.probeSeconds, "probe-seconds", 10, "seconds of probes, each of which is a sample")
	fs.IntVar(&o.pulls, "pulls", 10, "pulls")
	fs.StringVar(&many, "many", "10,100", "numbers of pods of the many phase, ascending")
	fs.StringVar(&o.manyNet, "many-net", "default", "network of the pods of the many phase")
	fs.DurationVar(&o.settle, "settle", 3*time.Second, "wait before memory is read")
	fs.StringVar(&o.json, "json", "", "`file` to add the samples to")
	fs.StringVar(&o.plot, "plot", "", "SVG `file` to plot the many phase into")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	o.phases, o.nets, o.handlers = split(phases), split(nets), split(handlers)
	var err error
	if o.many, err = parseMany(many); err != nil {
		return o, err
	}
	return o, o.complete()
}

func split(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' })
}

func parseMany(list string) (counts []int, err error) {
	for _, f := range split(list) {
		n, err := strconv.Atoi(f)
		if err != nil || n < 1 || len(counts) > 0 && n <= counts[len(counts)-1] {
			return nil, fmt.Errorf("-many %s: want ascending numbers of pods", list)
		}
		counts = append(counts, n)
	}
	return counts, nil
}

// complete fills in options that follow from others, and returns an error for an invalid
// combination.
func (o *options) complete() error {
	if len(o.endpoints) == 0 && len(o.engines) == 0 && len(o.commandLines) == 0 && len(o.phases) > 0 {
		return errors.New("no -endpoint given")
	}
	if o.subject == "" && len(o.endpoints) > 0 {
		o.subject = o.endpoints[0].name
	}
	for _, p := range o.phases {
		if !slices.Contains(allPhases, p) {
			return fmt.Errorf("-phases: no phase %q, have %s", p, strings.Join(allPhases, ","))
		}
	}
	for _, n := range append([]string{o.manyNet}, o.nets...) {
		if !slices.Contains(allNets, n) {
			return fmt.Errorf("-nets: no network %q, have %s", n, strings.Join(allNets, ","))
		}
	}
	if min(o.rounds, o.execs, o.lists, o.pods, o.workers, o.batch, o.batches, o.probePods, o.probeSeconds, o.pulls) < 1 {
		return errors.New("counts must be at least 1")
	}
	if len(o.engines) > 0 && o.rootfs == "" {
		return errors.New("-engine needs -rootfs")
	}
	if p := o.cgroupParent; !strings.HasPrefix(p, "/") || filepath.Clean(p) != p || p == "/" {
		return fmt.Errorf("-cgroup-parent %s is no clean absolute path below the root", p)
	}
	return nil
}

// run measures, prints the table, and returns an error if any endpoint could not be measured in full.
func run(ctx context.Context, o options) (err error) {
	b := &bench{options: o, report: newReport(o.subject)}
	if o.json != "" {
		if err := b.report.load(o.json); err != nil {
			return err
		}
	}
	if s := b.report.Subject; s != "" && !slices.Contains(endpointNames(o.endpoints), s) &&
		!slices.ContainsFunc(o.commandLines, func(c commandLine) bool { return c.name == s }) && !slices.Contains(b.report.Names, s) {
		return fmt.Errorf("-subject %s is no endpoint, and no command line", s)
	}
	if b.logs, err = os.MkdirTemp("", "crisp-bench-"); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, b.close(context.WithoutCancel(ctx)), os.RemoveAll(b.logs))
	}()
	if err := b.dial(ctx); err != nil {
		return err
	}
	failures := b.runPhases(ctx)

	fmt.Println(b.report.markdown())
	if o.json != "" {
		if err := b.report.save(o.json); err != nil {
			return err
		}
	}
	if o.plot != "" {
		if err := os.WriteFile(o.plot, []byte(b.report.svg()), 0o644); err != nil {
			return err
		}
	}
	return failures
}
