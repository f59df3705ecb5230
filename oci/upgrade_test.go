package oci

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
)

// A brittle executor runs one container and does not survive an upgrade.
type brittle struct {
	listener *net.UnixListener

	mu    sync.Mutex
	calls []string // guarded by mu
}

func (x *brittle) Call(_ context.Context, _ *wire.Conn, call *wire.Call) (any, []*os.File, error) {
	x.mu.Lock()
	x.calls = append(x.calls, call.Method)
	x.mu.Unlock()
	switch call.Method {
	case wire.MethodHello:
		return wire.HelloReply{Version: "old", Protocol: wire.Protocol + 1}, nil, nil
	case wire.MethodList:
		return []wire.Info{{ID: "c1"}, {ID: "over", Exit: &wire.Exit{}}, {ID: "unknown"}}, nil, nil
	case wire.MethodDescriptors:
		r, w, err := os.Pipe()
		if err != nil {
			return nil, nil, err
		}
		w.Close()
		return nil, []*os.File{r}, nil
	case wire.MethodUpgrade:
		x.listener.Close()
		return nil, nil, nil
	}
	return nil, nil, fault.Invalid.Errorf("unknown method %q", call.Method)
}

// The first thing that a new crispd does may be an upgrade of the executor, which may fail.
// By then crispd must hold the read ends of the containers' pipes, or they would die of
// SIGPIPE.
func TestUpgradeThatFailsLosesNoStdio(t *testing.T) {
	o := Options{State: t.TempDir(), Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	o.Executor = filepath.Join(o.State, "executor")
	if err := os.WriteFile(o.Executor, []byte("#!/bin/sh\n[ \"$1\" = --version ] && echo new\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(o.State, "executor.sock"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	x := &brittle{listener: l}
	go wire.Serve(l, x, o.Log)

	r := &Runtime{o: o, log: o.Log}
	c := r.newContainer("c1", nil, &containerRecord{})
	c.status.Store(&containerStatus{Status: Status{State: Running}})
	r.containers.restore(c, o.Log)
	if conn, err := r.newSpawner().dial(t.Context()); err == nil {
		conn.Close()
		t.Error("an executor that ends at once was reached")
	}
	files, err := c.lend()
	defer wire.CloseAll(files)
	if err != nil || len(files) != 1 {
		t.Errorf("crispd keeps %v, %v", files, err)
	}
	c.release()
	x.mu.Lock()
	defer x.mu.Unlock()
	if want := []string{wire.MethodHello, wire.MethodList, wire.MethodDescriptors, wire.MethodUpgrade}; !slices.Equal(x.calls, want) {
		t.Errorf("calls to the executor are %v, want %v", x.calls, want)
	}
}
