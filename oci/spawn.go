package oci

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
)

// spawnTimeout bounds how long a new executor may take until it answers.
const spawnTimeout = 15 * time.Second

// A spawner connects to the executor, and starts it if nobody answers.
type spawner struct {
	path   string // of the program
	state  string
	cgroup string
	log    *slog.Logger
}

func newSpawner(o Options) *spawner {
	return &spawner{path: o.Executor, state: o.State, cgroup: executorCgroup(o.State), log: o.Log}
}

func (s *spawner) dial(ctx context.Context) (Engine, error) {
	socket := filepath.Join(s.state, "executor.sock")
	conn, err := s.hello(ctx, socket)
	if err == nil || !errors.Is(err, fault.Unavailable) {
		return conn, err
	}
	ctx, cancel := context.WithTimeout(ctx, spawnTimeout)
	defer cancel()
	ended, err := s.spawn(socket)
	if err != nil {
		return nil, err
	}
	for wait := time.Millisecond; ; wait = min(2*wait, 20*time.Millisecond) {
		conn, err := s.hello(ctx, socket)
		if err == nil || !errors.Is(err, fault.Unavailable) {
			return conn, err
		}
		select {
		case eerr := <-ended:
			// Another one may have been quicker: it holds the lock, and answers.
			if conn, err = s.hello(ctx, socket); err == nil {
				return conn, nil
			}
			return nil, fault.Unavailable.Errorf("executor ended at once (%v): see %s", eerr, s.logPath())
		case <-ctx.Done():
			return nil, fault.Unavailable.Errorf("executor does not answer: %w", err)
		case <-time.After(wait):
		}
	}
}

// hello connects to an executor that speaks our protocol.
func (s *spawner) hello(ctx context.Context, socket string) (Engine, error) {
	conn, err := wire.Dial(ctx, socket)
	if err != nil {
		return nil, err
	}
	var hello wire.HelloReply
	_, err = conn.Call(ctx, wire.MethodHello, nil, &hello)
	if err == nil && hello.Protocol != wire.Protocol {
		err = fmt.Errorf("executor %s speaks protocol %d, we speak %d", hello.Version, hello.Protocol, wire.Protocol)
	}
	if err != nil {
		conn.Close()
		drain(conn)
		return nil, err
	}
	return conn, nil
}

func (s *spawner) logPath() string { return filepath.Join(s.state, "executor.log") }

// spawn starts the executor in a session of its own, so that no signal meant for
// us reaches it; it moves itself to its own cgroup, so that the end of our
// service is not its end. The channel tells how it ended.
func (s *spawner) spawn(socket string) (<-chan error, error) {
	log, err := os.OpenFile(s.logPath(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log of executor: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(s.path, "--socket", socket, "--state", s.state, "--cgroup", s.cgroup)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start executor: %w", err)
	}
	s.log.Info("executor was started", "pid", cmd.Process.Pid)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // or it would stay a zombie
	return ended, nil
}
