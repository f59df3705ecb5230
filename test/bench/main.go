// Command bench measures CRI runtimes side by side.
//
// Every endpoint is asked the same things over the same socket protocol that the kubelet uses, in one run, and in turns: one
// call to the first, the same call to the second, and so on, with another one first in every round. A machine whose speed
// drifts is then slow for all of them alike. So compare ratios within one table, never figures of two tables.
//
// A run has up to six phases, always in this order, each of which starts and ends without pods of its own:
//
//	memory      PSS and private memory of the runtime's processes with 0 pods and with -pods pods; the first phase, so that
//	            no heap has grown from other work
//	list        ListContainers, ListPodSandbox and ListContainerStats while those pods are there
//	exec        ExecSync of true in a running container
//	lifecycle   a pod with one container up and down, call by call, one after the other
//	throughput  whole pods up and down per second, by -workers workers
//	pull        PullImage of -pull-image; it is removed, and the disk synced, before each pull
//
// lifecycle and throughput run once for each network in -nets: "host" is a pod in the node's network namespace, "bridge" a pod
// that gets a network from whatever the runtime's CNI configuration says.
//
// A pod is what the kubelet would ask for: a PID namespace per container, a log directory, one container that runs sleep. As with the
// kubelet the sandbox has the runtime's default seccomp profile, and the container has it with -seccomp-default. A pod is stopped with a grace period of 0, because PID 1 of busybox ignores SIGTERM and waiting
// for the grace period would measure the clock.
//
// A runtime's processes are those with the PIDs given with its endpoint and those of the given executables (shims and monitors that
// have PID 1 as their parent), and everything below them but the containers' own sleep. Pause processes are the runtime's cost, not a payload.
//
// Pods carry a label. Whatever carries it is removed before the run and after it, also when the run failed or was interrupted. So two
// benches cannot use one endpoint at once.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

type options struct {
	endpoints    []endpoint
	subject      string
	image        string
	pullImage    string
	cgroupParent string
	seccomp      bool
	phases       []string
	nets         []string
	rounds       int
	execs        int
	lists        int
	pods         int
	workers      int
	batch        int
	batches      int
	pulls        int
	settle       time.Duration
	json         string
}

func main() {
	opts, err := parseFlags(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
		context.AfterFunc(ctx, stop) // a second signal ends the cleanup too
		err = run(ctx, opts)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func parseFlags(args []string) (options, error) {
	var o options
	var phases, nets string
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.Func("endpoint", "`name=unix:///path.sock[,pid=N…][,exe=NAME…]`; repeat it for each runtime", func(s string) error {
		e, err := parseEndpoint(s)
		o.endpoints = append(o.endpoints, e)
		return err
	})
	fs.StringVar(&o.subject, "subject", "", "endpoint that the others are the peers of (default the first)")
	fs.StringVar(&o.image, "image", "registry.k8s.io/e2e-test-images/busybox:1.29-2", "image of the containers; it needs sleep and true")
	fs.StringVar(&o.pullImage, "pull-image", "", "image to measure pulls of; none, no pull phase")
	fs.StringVar(&o.cgroupParent, "cgroup-parent", "/crisp-bench", "cgroup parent of the pods; removed at the end")
	fs.BoolVar(&o.seccomp, "seccomp-default", false, "the runtime's default seccomp profile for containers too (the kubelet's --seccomp-default)")
	fs.StringVar(&phases, "phases", strings.Join(allPhases, ","), "phases to run")
	fs.StringVar(&nets, "nets", "host,bridge", "networks to run lifecycle and throughput with")
	fs.IntVar(&o.rounds, "rounds", 20, "lifecycle rounds")
	fs.IntVar(&o.execs, "execs", 50, "ExecSync calls")
	fs.IntVar(&o.lists, "lists", 50, "calls of each list")
	fs.IntVar(&o.pods, "pods", 50, "pods of the memory and list phases")
	fs.IntVar(&o.workers, "workers", 10, "workers of the throughput phase")
	fs.IntVar(&o.batch, "batch", 40, "pods of one throughput sample")
	fs.IntVar(&o.batches, "batches", 3, "throughput samples")
	fs.IntVar(&o.pulls, "pulls", 3, "pulls")
	fs.DurationVar(&o.settle, "settle", 3*time.Second, "wait before memory is read")
	fs.StringVar(&o.json, "json", "", "`file` to write the samples to")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	o.phases, o.nets = strings.Split(phases, ","), strings.Split(nets, ",")
	return o, o.complete()
}

// complete fills in what follows from other options and says what is wrong.
func (o *options) complete() error {
	if len(o.endpoints) == 0 {
		return errors.New("no -endpoint given")
	}
	if o.subject == "" {
		o.subject = o.endpoints[0].name
	}
	if !slices.Contains(endpointNames(o.endpoints), o.subject) {
		return fmt.Errorf("-subject %s is no endpoint", o.subject)
	}
	for _, p := range o.phases {
		if !slices.Contains(allPhases, p) {
			return fmt.Errorf("-phases: no phase %q, have %s", p, strings.Join(allPhases, ","))
		}
	}
	for _, n := range o.nets {
		if n != "host" && n != "bridge" {
			return fmt.Errorf("-nets: no network %q, have host,bridge", n)
		}
	}
	if min(o.rounds, o.execs, o.lists, o.pods, o.workers, o.batch, o.batches, o.pulls) < 1 {
		return errors.New("counts must be at least 1")
	}
	if p := o.cgroupParent; !strings.HasPrefix(p, "/") || filepath.Clean(p) != p || p == "/" {
		return fmt.Errorf("-cgroup-parent %s is no clean absolute path below the root", p)
	}
	return nil
}

// run measures, prints the table, and returns an error if any endpoint could not be measured in full.
func run(ctx context.Context, o options) (err error) {
	logs, err := os.MkdirTemp("", "crisp-bench-")
	if err != nil {
		return err
	}
	b := &bench{options: o, logs: logs, report: newReport(endpointNames(o.endpoints), o.subject)}
	defer func() {
		err = errors.Join(err, b.close(context.WithoutCancel(ctx)), os.RemoveAll(logs))
	}()
	if err := b.dial(ctx); err != nil {
		return err
	}
	failures := b.runPhases(ctx)

	fmt.Println(b.report.markdown())
	if o.json != "" {
		data, err := json.MarshalIndent(b.report, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(o.json, append(data, '\n'), 0o644); err != nil {
			return err
		}
	}
	return failures
}
