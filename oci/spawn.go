package oci

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

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
// Somebody may have removed the lock and the socket of a running executor. The executor
// recreates them in a few seconds; until then claim recognizes it by its cgroup, and leaves it
// the lock.
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
// fault.Unavailable = there is none, or it went away meanwhile.
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

// lastWords quotes the last line of a log after its first from bytes: the file may be gone
// before anybody can read it.
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
