package oci

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/backoff"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/flock"
	"github.com/crisp-cri/crisp/oci/wire"
)

// spawnTimeout bounds the time a new executor may take to answer.
const spawnTimeout = time.Minute

// helloTimeout bounds the time a running executor may take to identify itself. That depends on
// nothing: an executor that takes longer hangs.
const helloTimeout = 30 * time.Second

// A spawner connects to the executor, and starts it if none answers.
type spawner struct {
	path   string // of the program
	state  string
	cgroup string
	log    *slog.Logger

	// before is called before an executor is asked to replace itself by another program: it may
	// not survive that.
	before func(context.Context, ExecutorConn)
}

func (r *Runtime) newSpawner() *spawner {
	return &spawner{path: r.o.Executor, state: r.o.State, cgroup: executorCgroup(r.o.State), log: r.log, before: r.fetchAll}
}

func (s *spawner) dial(ctx context.Context) (ExecutorConn, error) {
	socket := filepath.Join(s.state, "executor.sock")
	conn, err := s.answering(ctx, socket)
	if !errors.Is(err, fault.Unavailable) {
		return conn, err
	}
	ctx, cancel := context.WithTimeout(ctx, spawnTimeout)
	defer cancel()
	lock, conn, err := s.claim(ctx, socket)
	if lock == nil {
		return conn, err
	}
	var before int64 // the length of the log before this executor
	if info, err := os.Stat(s.logPath()); err == nil {
		before = info.Size()
	}
	ended, err := s.spawn(socket, lock)
	lock.Close() // the executor has its own descriptor
	if err != nil {
		return nil, err
	}
	for pause := backoff.New(time.Millisecond, 20*time.Millisecond); ; {
		conn, running, err := s.hello(ctx, socket)
		if err == nil {
			return s.speaking(conn, running)
		}
		if !errors.Is(err, fault.Unavailable) {
			return nil, err
		}
		select {
		case eerr := <-ended:
			return nil, fault.Unavailable.Errorf("executor ended at once (%v): %s", eerr, lastWords(s.logPath(), before))
		case <-ctx.Done():
			return nil, fault.Unavailable.Errorf("executor does not answer: %w", err)
		case <-time.After(pause.Next()):
		}
	}
}

// claim takes the lock of executors, for the one that will be started. Its holder is an executor
// that runs, or that was started and does not answer yet, perhaps by a crispd that has ended:
// claim waits for its answer, or its end. So at no moment can a second one be started or the
// first be overlooked.
//
// The lock and the socket of a running executor may have been removed. The executor recreates them
// in a few seconds; until then claim recognizes it by its cgroup, and leaves it the lock.
func (s *spawner) claim(ctx context.Context, socket string) (*os.File, ExecutorConn, error) {
	for pause := backoff.New(time.Millisecond, 20*time.Millisecond); ; {
		waits := "executor holds its lock and does not answer"
		if pid := s.found(socket); pid != 0 {
			waits = fmt.Sprintf("executor runs as process %d and neither answers nor puts back its socket; "+
				"if it is of a release that cannot, kill it, and another takes its containers over", pid)
		} else if lock, err := s.lock(); !errors.Is(err, flock.ErrHeld) {
			return lock, nil, err
		}
		conn, err := s.answering(ctx, socket)
		if !errors.Is(err, fault.Unavailable) {
			return nil, conn, err
		}
		if pause.Wait(ctx) != nil {
			return nil, nil, fault.Unavailable.Errorf("%s: %w", waits, err)
		}
	}
}

// lock takes the lock, or returns flock.ErrHeld at once.
func (s *spawner) lock() (*os.File, error) {
	path := filepath.Join(s.state, "executor.lock")
	lock, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock of executor: %w", err)
	}
	if err := flock.Try(lock); err != nil {
		lock.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	if !flock.IsAt(lock, path) { // it was removed before it was locked
		lock.Close()
		return nil, flock.ErrHeld
	}
	return lock, nil
}

// answering connects to the running executor, and upgrades it to the installed program.
// fault.Unavailable = none runs, or it went away meanwhile.
func (s *spawner) answering(ctx context.Context, socket string) (ExecutorConn, error) {
	conn, running, err := s.hello(ctx, socket)
	if err != nil {
		return nil, err
	}
	return s.current(ctx, conn, running, socket)
}

// hello connects to the executor, whatever protocol it speaks: hello and upgrade are the same in
// all protocols.
func (s *spawner) hello(ctx context.Context, socket string) (ExecutorConn, wire.HelloReply, error) {
	var hello wire.HelloReply
	conn, err := wire.Dial(ctx, socket)
	if err != nil {
		return nil, hello, err
	}
	answer, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	if _, err = conn.Call(answer, wire.MethodHello, nil, &hello); err != nil {
		if answer.Err() != nil && ctx.Err() == nil {
			err = fault.Unavailable.Errorf("executor has not said hello within %v", helloTimeout)
			s.log.Error("executor is killed, to be replaced", "err", err, "kill", conn.Kill())
		}
		conn.Close()
		drain(conn)
		return nil, hello, err
	}
	return conn, hello, nil
}

// maxLastWords bounds the part of a log that an error quotes, in bytes.
const maxLastWords = 1024

// lastWords quotes the last line of a log after its first from bytes: the file may be gone before
// it can be read.
func lastWords(path string, from int64) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err.Error()
	}
	if info.Size() < from {
		from = 0 // it was rotated
	}
	from = max(from, info.Size()-maxLastWords)
	data, err := io.ReadAll(io.NewSectionReader(f, from, maxLastWords))
	text := strings.TrimSpace(string(data))
	switch line := text[strings.LastIndexByte(text, '\n')+1:]; {
	case err != nil:
		return err.Error()
	case line == "":
		return "it wrote nothing into " + path
	default:
		return path + " ends with: " + strings.ToValidUTF8(line, "?")
	}
}

func (s *spawner) logPath() string { return filepath.Join(s.state, "executor.log") }

// spawn starts the executor in its own session, so that no signal meant for us reaches it; it
// moves itself to its own cgroup, to outlive our service. It inherits the held lock. The channel
// receives how it ended.
func (s *spawner) spawn(socket string, lock *os.File) (<-chan error, error) {
	log, err := os.OpenFile(s.logPath(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log of executor: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(s.path, "--socket", socket, "--state", s.state, "--cgroup", s.cgroup, "--lock-fd", "3")
	cmd.ExtraFiles = []*os.File{lock} // fd 3 in the executor
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start executor: %w", err)
	}
	s.log.Info("executor was started", "pid", cmd.Process.Pid)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // else it would stay a zombie
	return ended, nil
}

// upgradeTries is how often a busy executor is asked. It waits some seconds before it reports
// that it is busy.
const upgradeTries = 3

// current upgrades the executor at conn to the installed program, if its version differs: an
// administrator has installed a new one and restarted only us. The process stays the same;
// containers do not notice. If the upgrade fails, the old program will do as long as it speaks
// our protocol.
func (s *spawner) current(ctx context.Context, conn ExecutorConn, running wire.HelloReply, socket string) (ExecutorConn, error) {
	installed, err := s.installed(ctx)
	if err != nil {
		s.log.Warn("version of the installed executor is unknown", "err", err)
		return s.speaking(conn, running)
	}
	if installed == running.Version {
		return s.speaking(conn, running)
	}
	s.before(ctx, conn)
	refused := s.upgrade(ctx, conn)
	conn.Close()
	drain(conn)
	// It has the same socket, so a client that connects before it is ready only waits.
	ctx, cancel := context.WithTimeout(ctx, spawnTimeout)
	defer cancel()
	conn, now, err := s.hello(ctx, socket)
	switch {
	case err != nil:
		return nil, fmt.Errorf("executor after its upgrade from %s to %s: %w", running.Version, installed, err)
	case now.Version == running.Version:
		s.log.Error("executor stays as it is", "version", running.Version, "installed", installed, "err", refused)
	default:
		s.log.Info("executor was upgraded", "pid", now.Pid, "from", running.Version, "to", now.Version)
	}
	return s.speaking(conn, now)
}

// upgrade returns when the old program has ended, and with it the connection.
func (s *spawner) upgrade(ctx context.Context, conn ExecutorConn) (err error) {
	ctx, cancel := context.WithTimeout(ctx, spawnTimeout)
	defer cancel()
	for range upgradeTries {
		if _, err = conn.Call(ctx, wire.MethodUpgrade, wire.UpgradeRequest{Path: s.path}, nil); !errors.Is(err, fault.Unavailable) {
			break
		}
	}
	if err != nil {
		return err
	}
	for {
		select {
		case _, ok := <-conn.Events():
			if !ok {
				return nil
			}
		case <-ctx.Done():
			return fmt.Errorf("it runs on without an upgrade: %w", ctx.Err())
		}
	}
}

// installed asks the program at s.path for its version.
func (s *spawner) installed(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, s.path, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", s.path, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// speaking returns conn if its executor speaks our protocol.
func (s *spawner) speaking(conn ExecutorConn, hello wire.HelloReply) (ExecutorConn, error) {
	if hello.Protocol == wire.Protocol {
		return conn, nil
	}
	conn.Close()
	drain(conn)
	return nil, fmt.Errorf("executor %s speaks protocol %d, we speak %d", hello.Version, hello.Protocol, wire.Protocol)
}

// found returns the PID of an executor that runs in this instance's cgroup and listens at the
// socket, even if the socket and the lock file have been removed; 0 if none does. It does not find
// an executor that could not move to its cgroup.
//
// The listening socket distinguishes it from processes that it has started in its cgroup, and
// the cgroup from a container's process that listens at the same path in its own mount
// namespace.
func (s *spawner) found(socket string) (pid int) {
	sockets := listening("/proc/self/net/unix", socket)
	if len(sockets) == 0 || s.cgroup == "" {
		return 0
	}
	dirs, _ := cgroupDirs(s.cgroup)
	scopes, _ := cgroupDirs("/system.slice" + s.cgroup + ".scope")
	for _, list := range []map[string]string{dirs, scopes} {
		for _, dir := range list {
			for _, pid := range cgroupProcs(dir) {
				if hasAny(pid, sockets) {
					return pid
				}
			}
		}
	}
	return 0
}

// listening returns the link targets of the descriptors of sockets that listen at path, from a
// table in the format of /proc/net/unix (proc_net(5)):
//
//	Num       RefCount Protocol Flags    Type St Inode Path
//	0000000000000000: 00000002 00000000 00010000 0001 01 21942 /run/crisp/executor.sock
func listening(table, path string) map[string]bool {
	const accepts = 1 << 16 // __SO_ACCEPTCON
	f, err := os.Open(table)
	if err != nil {
		return nil
	}
	defer f.Close()
	found := map[string]bool{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if !strings.HasSuffix(lines.Text(), " "+path) {
			continue
		}
		fields := strings.Fields(strings.TrimSuffix(lines.Text(), path))
		if len(fields) != 7 {
			continue
		}
		if flags, err := strconv.ParseUint(fields[3], 16, 32); err == nil && flags&accepts != 0 {
			found["socket:["+fields[6]+"]"] = true
		}
	}
	return found
}

// hasAny reports whether a process has a descriptor with one of these link targets.
func hasAny(pid int, links map[string]bool) bool {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return false // it has ended
	}
	files, err := p.FileDescriptorTargets()
	return err == nil && slices.ContainsFunc(files, func(file string) bool { return links[file] })
}
