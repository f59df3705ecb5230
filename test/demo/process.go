package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// patience bounds every wait: a pod starts in well under a second.
const patience = time.Minute

// A daemon is a process that the demo has started and must end.
type daemon struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

// start starts a program of bin in the background, with a log file of its own.
func (d *demo) start(ctx context.Context, program string, args ...string) error {
	command("%s %s &", program, strings.Join(args, " "))
	logFile := filepath.Join(d.dir, fmt.Sprintf("%s-%d.log", program, len(d.daemons)))
	log, err := os.Create(logFile)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(d.bin, program), args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = d.dir
	// Ctrl-C reaches only the demo, which then ends its daemons in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	p := &daemon{program, logFile, cmd, make(chan struct{})}
	go func() {
		_ = cmd.Wait() // the error does not matter
		close(p.done)
	}()
	d.daemons = append(d.daemons, p)
	return ctx.Err()
}

// stop ends a daemon and waits for it.
func (p *daemon) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(patience):
		_ = p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("%s did not end by SIGTERM", p.name)
	}
}

// crisp runs a command line and prints its output.
func (d *demo) crisp(ctx context.Context, args ...string) error {
	command("crisp %s", strings.Join(args, " "))
	out, err := d.output(ctx, args...)
	fmt.Print(indent(out))
	if err != nil {
		return fmt.Errorf("crisp %s: %w", args[0], err)
	}
	return nil
}

func (d *demo) quiet(ctx context.Context, args ...string) error {
	_, err := d.output(ctx, args...)
	return err
}

func (d *demo) output(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(d.bin, "crisp"), args...)
	cmd.Env = append(os.Environ(), "CRISP_RUNTIME_ENDPOINT=unix://"+d.socket(), "CRISP_AGENT_ROOT="+d.agentRoot())
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// waitFor polls until yes returns true. If a daemon exits meanwhile, the error has the end of its
// log.
func (d *demo) waitFor(ctx context.Context, what string, yes func() bool) error {
	deadline := time.Now().Add(patience)
	for !yes() {
		for _, p := range d.daemons {
			select {
			case <-p.done:
				return fmt.Errorf("%s ended:\n%s", p.name, tail(p.log))
			default:
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("waited too long for %s:\n%s", what, d.logs())
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil
}

func (d *demo) logs() string {
	var b strings.Builder
	for _, p := range d.daemons {
		fmt.Fprintf(&b, "%s:\n%s", p.name, tail(p.log))
	}
	return b.String()
}

func tail(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.SplitAfter(string(data), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "")
}
