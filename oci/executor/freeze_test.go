package executor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/executor/proc"
	"github.com/crisp-cri/crisp/oci/wire"
)

// A fakeCgroup is a directory with the files of a cgroup's freezer. Its processes count as
// frozen when the test says so.
type fakeCgroup struct {
	t   *testing.T
	dir string
}

func newFakeCgroup(t *testing.T) fakeCgroup {
	g := fakeCgroup{t, t.TempDir()}
	// In a real cgroup the file exists. If the executor had to create it, it would have no
	// permissions.
	if err := os.WriteFile(filepath.Join(g.dir, "cgroup.freeze"), []byte("0"), 0o600); err != nil {
		t.Fatal(err)
	}
	g.stopped("0")
	return g
}

func (g fakeCgroup) stopped(n string) {
	g.t.Helper()
	if err := os.WriteFile(filepath.Join(g.dir, "cgroup.events"), []byte("populated 1\nfrozen "+n+"\n"), 0o600); err != nil {
		g.t.Fatal(err)
	}
}

// asked returns what was written to cgroup.freeze last.
func (g fakeCgroup) asked() string {
	data, _ := os.ReadFile(filepath.Join(g.dir, "cgroup.freeze"))
	return string(data)
}

// container adds a running container with this cgroup to x.
func (g fakeCgroup) container(x *Executor, id string) *container {
	c := &container{phase: running, proc: &proc.Process{}, settings: settings{Settings: wire.Settings{ID: id}}, ref: wire.RunReply{Cgroups: map[string]string{"": g.dir}}}
	x.table.containers[id] = c
	return c
}

// A freeze is undone, by the caller or at the end of its call, while one process is not yet frozen.
// Nothing stays frozen when that process finally freezes, and another freeze's processes are not
// thawed.
func TestFreezeGivenUp(t *testing.T) {
	for name, givenUp := range map[string]func(*Executor, context.CancelFunc){
		"thawed":   func(x *Executor, _ context.CancelFunc) { x.thaw(wire.ThawRequest{IDs: []string{"a", "b"}}) },
		"canceled": func(_ *Executor, cancel context.CancelFunc) { cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newFakeCgroup(t), newFakeCgroup(t)
			b.stopped("1")
			x := &Executor{table: newTable()}
			for id, g := range map[string]fakeCgroup{"a": a, "b": b} {
				g.container(x, id)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan error, 1)
			go func() {
				_, err := x.table.freezeAll(ctx, []string{"a", "b"})
				ended <- err
			}()
			for a.asked() != "1" {
				time.Sleep(time.Millisecond)
			}
			b.stopped("0")
			givenUp(x, cancel)
			if err := <-ended; !errors.Is(err, fault.WrongState) && !errors.Is(err, context.Canceled) {
				t.Errorf("the freeze ended with %v", err)
			}
			if got := a.asked() + b.asked(); got != "00" && got != "0" {
				t.Errorf("the cgroups' last freezer states are %q", got)
			}
			if x.table.isFrozen(x.table.containers["a"]) || x.table.isFrozen(x.table.containers["b"]) {
				t.Error("the containers count as frozen")
			}
			a.stopped("1")
			b.stopped("1")
			h, err := x.table.freezeAll(t.Context(), []string{"a", "b"})
			if err != nil {
				t.Fatalf("the next freeze: %v", err)
			}
			if err := x.table.thawOp([]string{"a", "b"}, &freezeOp{}); err != nil || !x.table.isFrozen(x.table.containers["a"]) {
				t.Errorf("what another freeze had frozen is thawed: %v", err)
			}
			a.stopped("0")
			b.stopped("0")
			if err := x.table.thawOp([]string{"a", "b"}, h); err != nil || a.asked() != "0" || x.table.isFrozen(x.table.containers["a"]) {
				t.Errorf("the container is not thawed: %v", err)
			}
		})
	}
}

// A freeze whose caller has gone before it begins freezes nothing: the caller's thaw came first.
func TestFreezeAfterItsCaller(t *testing.T) {
	g := newFakeCgroup(t)
	x := &Executor{table: newTable()}
	c := g.container(x, "a")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := x.thaw(wire.ThawRequest{IDs: []string{"a"}}); err != nil {
		t.Fatal(err)
	}
	g.stopped("1")
	go func() { // the kernel
		for g.asked() != "1" {
			time.Sleep(time.Millisecond)
		}
		for g.asked() != "0" && t.Context().Err() == nil {
			time.Sleep(time.Millisecond)
		}
		g.stopped("0")
	}()
	if _, err := x.table.freezeAll(ctx, []string{"a"}); !errors.Is(err, context.Canceled) || x.table.isFrozen(c) {
		t.Errorf("the freeze ended with %v, and the container counts as frozen: %t", err, x.table.isFrozen(c))
	}
}

// Nothing is frozen or dumped while an exec is being started in it, and no exec is started in what
// is.
func TestFreezeAwaitsExecs(t *testing.T) {
	g := newFakeCgroup(t)
	g.stopped("1")
	x := &Executor{table: newTable()}
	c := g.container(x, "a")
	for name, stop := range map[string]func(context.Context) (goOn func(), err error){
		"freeze": func(ctx context.Context) (func(), error) {
			op, err := x.table.freezeAll(ctx, []string{"a"})
			return func() { g.stopped("0"); x.table.thawOp([]string{"a"}, op) }, err
		},
		"dump": func(ctx context.Context) (func(), error) { return x.table.beginDump(ctx, c) },
	} {
		t.Run(name, func(t *testing.T) {
			g.stopped("0")
			leave, err := x.table.enter(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			g.stopped("1")
			short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if _, err := stop(short); !errors.Is(err, context.DeadlineExceeded) || g.asked() == "1" {
				t.Errorf("beside an exec it ended with %v, and the freezer state is %q", err, g.asked())
			}
			var goOn func()
			over := make(chan error)
			go func() {
				var err error
				goOn, err = stop(t.Context())
				over <- err
			}()
			eventually(t, func() bool { return x.table.isFrozen(c) || x.table.dumped(c) })
			if _, err := x.table.enter(t.Context(), c); !errors.Is(err, fault.WrongState) {
				t.Errorf("an exec that comes meanwhile: %v", err)
			}
			leave()
			if err := <-over; err != nil {
				t.Fatal(err)
			}
			if _, err := x.table.enter(t.Context(), c); !errors.Is(err, fault.WrongState) {
				t.Errorf("an exec that comes afterwards: %v", err)
			}
			goOn()
			g.stopped("0")
			if leave, err = x.table.enter(t.Context(), c); err != nil {
				t.Fatalf("an exec after the thaw: %v", err)
			}
			leave()
		})
	}
}

func (t *table) dumped(c *container) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return c.dumped
}
