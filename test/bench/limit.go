package main

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/crisp-cri/crisp/server/spec"
)

// limitSource is the program that makes a restricted pod at the least cost.
//
//go:embed limit/limit.c
var limitSource string

// limitName is the limit's column, a peer of all runtimes.
const limitName = "limit"

// limitGroup is the group of pods next to the limit's.
const limitGroup = "One restricted pod and the limit, host network"

// A limit is the program, running.
type limit struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// startLimit compiles the program and starts it with a root file system.
func startLimit(ctx context.Context, dir, rootfs, cgroupParent string) (*limit, error) {
	rules, work := filepath.Join(dir, "rules"), filepath.Join(dir, "limit.d")
	text, err := seccompRules(spec.DefaultSeccomp(nil, runtime.GOARCH))
	if err = errors.Join(err, os.WriteFile(rules, []byte(text), 0o600), os.MkdirAll(work, 0o755)); err != nil {
		return nil, err
	}
	program, err := buildLimit(ctx, dir)
	if err != nil {
		return nil, err
	}
	l := &limit{cmd: exec.CommandContext(ctx, program, rootfs, work, cgroupParent, rules)}
	l.cmd.Stderr = os.Stderr
	in, err := l.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := l.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	l.in, l.out = in, bufio.NewReader(out)
	return l, l.cmd.Start()
}

// buildLimit compiles the program in dir.
func buildLimit(ctx context.Context, dir string) (string, error) {
	program := filepath.Join(dir, limitName)
	cc := exec.CommandContext(ctx, "cc", "-static", "-O2", "-x", "c", "-o", program, "-", "-lseccomp")
	cc.Stdin = strings.NewReader(limitSource)
	if out, err := cc.CombinedOutput(); err != nil {
		return "", fmt.Errorf("cc: %w: %s", err, out)
	}
	return program, nil
}

// do gives the program a command and waits for its answer.
func (l *limit) do(command string) error {
	if _, err := io.WriteString(l.in, command+"\n"); err != nil {
		return err
	}
	answer, err := l.out.ReadString('\n')
	if err != nil {
		return err
	}
	if answer != "ok\n" {
		return errors.New(strings.TrimSpace(answer))
	}
	return nil
}

// stop ends the program, which removes its pod.
func (l *limit) stop() error { return errors.Join(l.in.Close(), l.cmd.Wait()) }

// round takes a pod up and down, with an exec in between.
func (l *limit) round(ctx context.Context, t timing) error {
	for _, step := range [][2]string{{"RunPodSandbox", "pod"}, {"create + start", "start"}, {"ExecSync true", "exec"}, {"whole pod down", "down"}} {
		if err := t.call(ctx, step[0], func(context.Context) error { return l.do(step[1]) }); err != nil {
			return errors.Join(err, l.do("down"))
		}
	}
	return nil
}

// limits measures restricted pods of each endpoint and of the limit in turns.
func (b *bench) limits(ctx context.Context) {
	l, err := startLimit(ctx, b.logs, b.rootfs, b.cgroupParent)
	if err == nil {
		err = b.report.version(limitName, "test/bench/limit/limit.c")
	}
	if err != nil {
		b.fail(limitName, "start", err)
		return
	}
	defer func() {
		if err := l.stop(); err != nil {
			b.fail(limitName, "stop", err)
		}
	}()
	for i := range b.rounds + 1 { // the first round is no sample
		turns := rand.Perm(len(b.endpoints) + 1)
		for _, j := range turns {
			name, round := limitName, l.round
			if j < len(b.endpoints) {
				e := &b.endpoints[j]
				name, round = e.name, func(ctx context.Context, t timing) error {
					return e.around(ctx, b.newPod(e, "host", restricted), t, func(e *endpoint, p *pod, t timing) error { return e.timedExec(ctx, p, t) })
				}
			}
			if b.failed[name] || ctx.Err() != nil {
				continue
			}
			took := durations{}
			if err := round(ctx, took.add); err != nil {
				b.fail(name, "pod", err)
			} else if i > 0 {
				b.recordLimit(name, took)
			}
		}
	}
}

// recordLimit adds the rows that runtimes and the limit have in common.
func (b *bench) recordLimit(name string, took durations) {
	sum := func(calls ...string) (d time.Duration) {
		for _, c := range calls {
			d += took[c]
		}
		return d
	}
	started := sum("create + start", "CreateContainer", "StartContainer") // a runtime has no first one
	for _, row := range []struct {
		name string
		took time.Duration
	}{
		{"RunPodSandbox", took["RunPodSandbox"]},
		{"create + start", started},
		{"whole pod up", took["RunPodSandbox"] + started},
		{"ExecSync true", took["ExecSync true"]},
		{"whole pod down", sum("whole pod down", "StopContainer", "RemoveContainer", "StopPodSandbox", "RemovePodSandbox")},
	} {
		b.report.add(limitGroup, row.name, "ms", name, milliseconds(row.took))
	}
}

// libseccomp's numbers of comparisons (enum scmp_compare).
var comparisons = map[specs.LinuxSeccompOperator]int{
	specs.OpNotEqual: 1, specs.OpLessThan: 2, specs.OpLessEqual: 3, specs.OpEqualTo: 4,
	specs.OpGreaterEqual: 5, specs.OpGreaterThan: 6, specs.OpMaskedEqual: 7,
}

// seccompRules writes a profile as the lines that the program reads.
func seccompRules(p *specs.LinuxSeccomp) (string, error) {
	if p.DefaultAction != specs.ActErrno || p.DefaultErrnoRet == nil {
		return "", fmt.Errorf("the profile's default action is %s, want an errno", p.DefaultAction)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "default %d\n", *p.DefaultErrnoRet)
	for _, a := range p.Architectures {
		fmt.Fprintf(&b, "arch %s\n", strings.ToLower(strings.TrimPrefix(string(a), "SCMP_ARCH_")))
	}
	for _, rule := range p.Syscalls {
		tail := ""
		switch {
		case rule.Action == specs.ActErrno && rule.ErrnoRet != nil:
			tail = fmt.Sprintf(" %d", *rule.ErrnoRet)
		case rule.Action == specs.ActAllow:
			tail = " 0"
		default:
			return "", fmt.Errorf("the profile has the action %s", rule.Action)
		}
		switch len(rule.Args) {
		case 0:
		case 1:
			a := rule.Args[0]
			tail += fmt.Sprintf(" %d %d %d %d", a.Index, comparisons[a.Op], a.Value, a.ValueTwo)
		default:
			return "", fmt.Errorf("a rule of the profile has %d arguments", len(rule.Args))
		}
		for _, name := range rule.Names {
			fmt.Fprintf(&b, "rule %s%s\n", name, tail)
		}
	}
	return b.String(), nil
}
