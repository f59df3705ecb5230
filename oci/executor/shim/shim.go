// Package shim talks to containerd's shims: programs such as containerd-shim-runsc-v1 that run the
// containers of a pod in a sandbox of their own, and serve the Task API on a socket.
//
//	Start ─► PROGRAM … start ─► the shim, a daemon ─► its containers
//	  │      (prints an Address)   ▲          │
//	  └─► Dial ─► Client ──────────┘          └─► Events: exits, OOM kills
//	                    requests (ttrpc)          (ttrpc, the other way round)
//
// The protocol is containerd's: its documents core/runtime/v2/README.md and ttrpc's PROTOCOL.md, its
// API's shim.proto (runtime/task/v2 and v3, which differ in their names only), sandbox.proto,
// bootstrap.proto and events.proto. Few shims serve the Sandbox API: runc's does not, gVisor's has nothing
// behind it, Kata's in Rust does.
//
// The messages are encoded here, by hand: the executor is executed for each container, and pays for
// each package that it initializes. The API's modules with what they import would cost more than
// a millisecond and 5.8 MB each time. Tests compare each message with theirs.
//
// A shim may be broken or hostile. Each call ends with its context, the size of what a shim sends is
// bounded, and an answer is data about its own containers only.
package shim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
)

// A Program is a shim's program, called for one container.
type Program struct {
	Path      string  // absolute
	Namespace string  // of containerd: shims keep containers of different namespaces apart
	ID        string  // of the container
	Bundle    string  // its directory, with config.json
	Events    string  // the path of the socket that the shim publishes to, see Serve
	Sockets   string  // a directory for the shim's socket, which newer shims respect; "" = their own
	Options   *Any    // of the shim's runtime; nil = its defaults
	Keeper    *Keeper // that the shim inherits; nil = none
	Env       []string
}

// An Address is where a shim can be reached.
type Address struct {
	Program   string // its path
	Namespace string
	Path      string // of its socket
	Version   int    // of the Task API: 2 or 3
}

// String returns the shim's name for errors.
func (a Address) String() string { return fmt.Sprintf("shim %s at %s", a.Program, a.Path) }

// Start starts the shim of a container, or finds the one that the program shares with other containers
// of the same pod. The bundle must have an open Log. The caller bounds the time.
func Start(ctx context.Context, p Program) (*Address, error) {
	out, err := p.run(ctx, p.params(), "start")
	if err != nil {
		return nil, err
	}
	b, err := parseBootstrap(out)
	if err != nil {
		return nil, fault.Internal.Errorf("shim %s: answer to start: %w", p.Path, err)
	}
	return &Address{Program: p.Path, Namespace: p.Namespace, Path: b.path, Version: b.version}, nil
}

// Delete removes what a shim that died has left of the container, and returns how that ended.
func (p Program) Delete(ctx context.Context) (*Exit, error) {
	out, err := p.run(ctx, nil, "-bundle", p.Bundle, "delete")
	if err != nil {
		return nil, err
	}
	exit, err := deleteFields.decode(out)
	if err != nil {
		return nil, malformed("shim "+p.Path+": answer to delete", err)
	}
	return exit, nil
}

// params is the stdin of start: a bootstrap.v1.BootstrapParams. Older shims ignore it.
func (p Program) params() (m message) {
	m.string(1, p.ID)
	m.string(2, p.Namespace)
	m.string(5, p.Events)
	m.string(6, p.Events)
	m.string(7, publisher)
	if p.Options != nil {
		var extension message
		extension.any(1, p.Options)
		m.nested(8, extension)
	}
	m.string(9, p.Sockets)
	return m
}

// publisher is the program by which old shims publish events, and without whose name some do not
// start. Events come by p.Events, so it does nothing.
const publisher = "/bin/true"

// Bounds of what a program prints, in bytes, and how long it may keep its output open after it has
// exited.
const (
	maxAnswer  = 64 << 10
	maxErrors  = 16 << 10
	outputTime = 2 * time.Second
)

// run calls the program and returns what it has printed.
func (p Program) run(ctx context.Context, stdin []byte, args ...string) ([]byte, error) {
	if !filepath.IsAbs(p.Path) {
		return nil, fault.Invalid.Errorf("shim %q of container %s is not an absolute path", p.Path, p.ID)
	}
	what := fmt.Sprintf("shim %s: %s of container %s", p.Path, args[len(args)-1], p.ID)
	flags := []string{"-namespace", p.Namespace, "-address", p.Events, "-publish-binary", publisher, "-id", p.ID}
	cmd := exec.CommandContext(ctx, p.Path, append(flags, args...)...)
	cmd.Dir = p.Bundle
	cmd.Env = append(cmd.Environ(), "GOMAXPROCS=2", "MAX_SHIM_VERSION=2",
		"TTRPC_ADDRESS="+p.Events, "GRPC_ADDRESS="+p.Events, "NAMESPACE="+p.Namespace)
	cmd.Env = append(cmd.Env, p.Env...)
	cmd.ExtraFiles = p.Keeper.inherited()
	cmd.Stdin = bytes.NewReader(stdin)
	out, complaint := &bounded{limit: maxAnswer}, &bounded{limit: maxErrors}
	cmd.Stdout, cmd.Stderr = out, complaint
	cmd.WaitDelay = outputTime
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) } // with what it has started
	switch err := cmd.Run(); {
	case err == nil, errors.Is(err, exec.ErrWaitDelay) && ctx.Err() == nil:
	case ctx.Err() != nil:
		return nil, fault.Unavailable.Errorf("%s: no answer in time: %w", what, ctx.Err())
	default:
		text := shorten(complaint.kept.String() + " " + out.kept.String())
		return nil, fault.Internal.Errorf("%s: %w: %s", what, err, strings.TrimSpace(text))
	}
	if out.cut {
		return nil, fault.Internal.Errorf("%s: the answer is longer than %d bytes", what, maxAnswer)
	}
	return out.kept.Bytes(), nil
}

// A bounded buffer keeps the first bytes of what is written to it.
type bounded struct {
	kept  bytes.Buffer // not embedded: its ReadFrom would know no limit
	limit int
	cut   bool
}

func (b *bounded) Write(data []byte) (int, error) {
	n := min(len(data), b.limit-b.kept.Len())
	b.kept.Write(data[:n])
	b.cut = b.cut || n < len(data)
	return len(data), nil
}
