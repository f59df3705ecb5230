package oci

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
)

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
