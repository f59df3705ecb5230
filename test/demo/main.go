// Command demo shows crisp at work, as a newcomer would use it: it starts its own crispd and agent
// in a new directory, loads an image, applies stack.yaml, shows the running pod from several sides,
// and removes everything.
//
// It prints each command before it runs it, so that users can type the same. At the end it checks
// the kernel: if the demo has left anything, it reports that and fails. It waits for Ctrl-C, or
// ends by itself with DEMO_ONCE=1.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	bin := flag.String("bin", "bin", "directory of the binaries that make built")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *bin); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, bin string) (err error) {
	for _, program := range []string{"crispd", "crisp", "webserver"} {
		if _, err := os.Stat(filepath.Join(bin, program)); err != nil {
			return fmt.Errorf("%w: make demo builds it", err)
		}
	}
	d, err := newDemo(bin)
	if err != nil {
		return err
	}
	defer func() {
		ours := d.marks()
		err = errors.Join(err, d.end(), leaks(ours))
		if err != nil {
			err = fmt.Errorf("%w\nthe logs are in %s", err, d.dir)
			return
		}
		if err = os.RemoveAll(d.dir); err == nil {
			say("Nothing is left: no mount, cgroup, network, process or file.")
		}
	}()
	if err := d.show(ctx); ctx.Err() == nil {
		return err
	}
	return nil // Ctrl-C, at any step
}

// newDemo makes the demo's directory. Its path is short, because that of a socket has at most 107
// bytes (unix(7)).
func newDemo(bin string) (*demo, error) {
	bin, err := filepath.Abs(bin)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "crisp-demo-")
	if err != nil {
		return nil, err
	}
	d := &demo{bin: bin, dir: dir}
	if err := os.Mkdir(d.manifests(), 0o755); err != nil {
		return nil, err
	}
	return d, nil
}
