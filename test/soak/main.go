// Command soak uses every part of a crispd of its own at once, for minutes or hours, and
// checks whether anything of that is left.
//
// A few clients pick actions at random from all of CRI: pods with and without a network, host
// ports, containers, exec, attach and port-forward streams, log rotation, statistics, lists,
// pulls and removals of images, updates, checkpoints where CRIU works, streams of events; they
// disturb each other, give up during calls, and some vanish as if they were killed. crispd, its
// executor or both are killed with SIGKILL at random moments.
//
//	warm-up   a tenth of the time, without kills; then everything is removed, and measured
//	kills     half of the remaining time
//	steady    the rest, without kills of the daemons: slow growth has time to show
//
// At the end everything is removed by CRI, and memory, descriptors, goroutines, threads,
// cgroups, mounts, links, rules, processes, sockets, files and disk must be what they were after
// the warm-up, or the soak fails and names the difference. It also fails for each error of a
// call that no kill, cancellation or concurrent removal explains, for a wrong answer, and for
// panics and errors in the daemons' logs.
//
// The seed is printed. With the same one each client does the same in the same order, as far
// as that depends on the client.
//
// With -stuck it measures instead how much slower lists, statuses and stops become beside
// objects that are stuck; see stuck.go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"github.com/crisp-cri/crisp/test/testns"
)

type options struct {
	bin, testbin string
	life         time.Duration
	seed         uint64
	clients      int
	kills        bool
	keep         string
	verbose      bool
	stuck        string
	pods         int
	rounds       int
}

func main() {
	os.Exit(testns.Program(func() int {
		klog.SetSlogLogger(slog.New(slog.DiscardHandler)) // the clients of streams log their errors by it, too
		o, err := parseFlags(os.Args[1:])
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		if err == nil {
			ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			err = run(ctx, o)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "soak:", err)
			return 1
		}
		return 0
	}))
}

func parseFlags(args []string) (o options, err error) {
	fs := flag.NewFlagSet("soak", flag.ContinueOnError)
	fs.StringVar(&o.bin, "bin", "bin", "`directory` of the programs that make built")
	fs.StringVar(&o.testbin, "testbin", ".cache/soak/testbin", "the `program` that containers run")
	fs.DurationVar(&o.life, "time", 10*time.Minute, "how long")
	fs.Uint64Var(&o.seed, "seed", 0, "what is drawn from; 0: any")
	fs.IntVar(&o.clients, "clients", 6, "clients at once")
	fs.BoolVar(&o.kills, "kills", true, "kill the daemons")
	fs.StringVar(&o.keep, "keep", ".cache/soak/failed", "`directory` for the logs of a soak that fails")
	fs.BoolVar(&o.verbose, "v", false, "print an example of each error that was explained")
	fs.StringVar(&o.stuck, "stuck", "", "measure beside the stuck `things` that this regular expression matches instead; . is all")
	fs.IntVar(&o.pods, "pods", 500, "with -stuck, sandboxes that are stopped at once")
	fs.IntVar(&o.rounds, "rounds", 100, "with -stuck, how often each call is measured")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if o.seed == 0 {
		o.seed = rand.Uint64N(1 << 32)
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	return o, nil
}

func run(ctx context.Context, o options) (err error) {
	if os.Getuid() != 0 {
		return errors.New("needs root: it runs containers (sudo make soak)")
	}
	n, err := newNode(o)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, n.end())
		if err != nil && ctx.Err() == nil {
			err = errors.Join(err, n.keepLogs(o.keep))
		}
		err = errors.Join(err, os.RemoveAll(n.dir))
	}()
	if err := n.start(ctx); err != nil {
		return err
	}
	if o.stuck != "" {
		return stuck(ctx, n, o)
	}
	return soak(ctx, n, o)
}

func soak(ctx context.Context, n *node, o options) error {
	warm := o.life / 10
	kills := (o.life - warm) / 2
	fmt.Printf("soak: seed %d, %v, %d clients, in %s\n", o.seed, o.life, o.clients, n.dir)
	n.calls.judging.Store(true)
	if !checkpoints() {
		fmt.Println("soak: no checkpoints, because there is no criu here")
	}
	m := newMix(n, o)
	for i, s := range []phase{{"warm-up", warm, false}, {"kills", kills, o.kills}, {"steady", o.life - warm - kills, false}} {
		fmt.Printf("soak: %s, %v\n", s.name, s.life.Round(time.Second))
		if err := m.play(ctx, s); err != nil {
			return err
		}
		if i == 1 {
			continue
		}
		if err := m.removeAll(ctx, i == 0); err != nil {
			return fmt.Errorf("after %s: %w", s.name, err)
		}
		if err := n.measure(ctx, i == 0); err != nil {
			return err
		}
	}
	fmt.Println(n.calls.table())
	if o.verbose {
		fmt.Println(n.calls.examples())
	}
	return errors.Join(n.compare(), n.calls.failed(), n.trouble())
}

// keepLogs copies the daemons' logs to dir.
func (n *node) keepLogs(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"crispd.log", "executor.log", "goroutines.txt"} {
		text, err := os.ReadFile(filepath.Join(n.dir, name))
		if err != nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	fmt.Println("soak: the logs are in", dir)
	return nil
}

// trouble returns an error for lines in the daemons' logs that fail every soak.
func (n *node) trouble() error {
	var lines []string
	for _, name := range []string{"crispd.log", "executor.log"} {
		text, err := os.ReadFile(filepath.Join(n.dir, name))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if trouble.MatchString(line) && !reported.MatchString(line) && len(lines) < 20 {
				lines = append(lines, name+": "+strings.TrimSpace(line))
			}
		}
	}
	if len(lines) == 0 {
		return nil
	}
	return fmt.Errorf("in the logs:\n  %s", strings.Join(lines, "\n  "))
}
