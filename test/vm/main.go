// Command vm runs the integration tests on a node like users': Debian with systemd, cgroup v2
// and AppArmor, in an emulator, with crisp installed from its Debian package. `make test-vm`
// calls it.
//
//	outside, on this machine                inside, as root
//	────────────────────────                ───────────────
//	disk.go     a root disk, kept in .cache
//	payload.go  a second disk: the package,
//	            the tests, this program ──▶ inside.go: one step of boots.go after
//	boot.go     the emulator's console  ◀── another, a line for each test
//	results.go  a third disk            ◀── a tar of all logs and results.json
//
// boots.go is the table of boots, with their kernel arguments and steps. Nothing is mounted on
// this machine, and the emulator does not write to the disks that are kept.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/flock"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == "inside" {
		inside(os.Args[2])
		return
	}
	var o options
	flag.BoolVar(&o.quick, "quick", false, "only the steps that a VM alone can show, within 15 minutes on 2 cores")
	flag.StringVar(&o.boot, "boot", "", "only the boot of this `name`")
	flag.StringVar(&o.steps, "steps", "", "only the steps that match this `regexp`")
	flag.StringVar(&o.run, "run", "", "only the tests that match this `regexp` (go test's -run)")
	flag.StringVar(&o.bin, "bin", "bin", "`directory` of the built programs")
	flag.StringVar(&o.deb, "deb", "", "the Debian `package` to install")
	flag.StringVar(&o.next, "next", "", "the `package` of a later version, to upgrade to")
	flag.StringVar(&o.tags, "tags", "", "build `tags` of the tests")
	flag.StringVar(&o.cache, "cache", ".cache/vm", "`directory` of what is kept between runs")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM, unix.SIGHUP)
	defer cancel()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "test-vm:", err)
		os.Exit(1)
	}
}

type options struct {
	quick            bool
	boot, steps, run string
	bin, deb, next   string
	tags             string
	cache            string
}

// chosen returns the names of the selected steps of b; without any, it is not booted.
func (o options) chosen(b boot) ([]string, error) {
	match, err := regexp.Compile(o.steps)
	if err != nil {
		return nil, err
	}
	want := full
	if o.quick {
		want = quick
	}
	var names []string
	asked := false // at least one of them is selected
	for _, s := range b.steps {
		if o.boot != "" && o.boot != b.name || s.in&want == 0 {
			continue
		}
		matches := match.MatchString(s.name)
		asked = asked || matches
		if matches || s.in&needed != 0 {
			names = append(names, s.name)
		}
	}
	if !asked {
		return nil, nil
	}
	return names, nil
}

// lock locks the cache for this run, and removes the files of a run that was killed.
func lock(cache string) (unlock func() error, err error) {
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, err
	}
	dir, err := os.Open(cache)
	if err != nil {
		return nil, err
	}
	if err := flock.Try(dir); err != nil {
		dir.Close()
		return nil, fmt.Errorf("another run uses %s: %w", cache, err)
	}
	old, _ := filepath.Glob(filepath.Join(cache, "run-*"))
	for _, path := range old {
		if err := os.RemoveAll(path); err != nil {
			dir.Close()
			return nil, err
		}
	}
	return dir.Close, nil
}

func run(ctx context.Context, o options) (err error) {
	if os.Getuid() != 0 {
		return errors.New("the root disk is made as root: run sudo make test-vm")
	}
	if runtime.GOARCH != "amd64" {
		return fmt.Errorf("the emulated node is an amd64 one, and this machine is %s", runtime.GOARCH)
	}
	if o.cache, err = filepath.Abs(o.cache); err != nil {
		return err
	}
	unlock, err := lock(o.cache)
	if err != nil {
		return err
	}
	defer unlock()
	disk, err := makeDisk(ctx, o.cache)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp(o.cache, "run-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	results := filepath.Join(o.cache, "results")
	if err := os.RemoveAll(results); err != nil {
		return err
	}
	p, err := newPayload(ctx, o, filepath.Join(work, "payload"))
	if err != nil {
		return err
	}
	var failed []string
	for _, b := range boots {
		steps, err := o.chosen(b)
		if err != nil {
			return err
		}
		if len(steps) == 0 {
			continue
		}
		if err := p.plan(b, steps, o); err != nil {
			return err
		}
		begin := time.Now()
		if err := b.run(ctx, disk, p, steps, work, filepath.Join(results, b.name)); err != nil {
			failed = append(failed, fmt.Sprintf("%s: %v", b.name, err))
		}
		fmt.Printf("boot %s took %v; all logs are in %s\n", b.name, time.Since(begin).Round(time.Second), filepath.Join(results, b.name))
	}
	if len(failed) > 0 {
		return errors.New(strings.Join(failed, "\n"))
	}
	return nil
}
