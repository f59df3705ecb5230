package server

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/oci/wire"
)

// lose begins a call, lets its caller leave once the call has arrived, and returns when the server
// has done what it goes on with.
func (n *node) lose(t *testing.T, arrived <-chan struct{}, release func(), call func(context.Context) error) {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() { left <- call(ctx) }() // directly: the server must know that the caller has left
	<-arrived
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Fatalf("the call ended with %v, want that its caller left", err)
	}
	release()
	n.server.work.wait()
}

// loseSandbox loses the caller of a sandbox that is made nevertheless.
func (n *node) loseSandbox(t *testing.T, config *cri.PodSandboxConfig) (id string) {
	t.Helper()
	waiting, release := n.net.block()
	n.lose(t, waiting, release, func(ctx context.Context) error {
		_, err := n.server.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config})
		return err
	})
	if made := n.net.attached(); len(made) != 1 || len(n.listed(t)) != 0 {
		t.Fatalf("attached are %v, want one sandbox, hidden", made)
	}
	return n.net.attached()[0]
}

// A pod that is deleted while it starts has a caller who hangs up and never returns. Whatever the
// call holds is there for the next who asks for it, without waiting for a time to pass.
func TestWhatALostCallerHoldsIsThereForTheNext(t *testing.T) {
	another := func() *cri.PodSandboxConfig {
		c := pod("web")
		c.Metadata.Uid = "another"
		return c
	}
	wantOnly := func(t *testing.T, n *node, id string) {
		t.Helper()
		n.server.work.wait()
		if got := n.net.attached(); !slices.Equal(got, []string{id}) {
			t.Errorf("attached are %v, want only the new sandbox %s", got, id)
		}
	}
	for name, lost := range map[string]func(*testing.T, *node){
		"host port": func(t *testing.T, n *node) {
			n.net.ports = true
			n.loseSandbox(t, pod("gone"))
			wantOnly(t, n, n.run(t, pod("web")))
		},
		"last address, but the host port is another's": func(t *testing.T, n *node) {
			n.net.ports, n.net.room = true, 2
			n.run(t, pod("other"))
			config := pod("gone")
			config.PortMappings[0].HostPort++
			waiting, release := n.net.block()
			n.lose(t, waiting, release, func(ctx context.Context) error {
				_, err := n.server.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config})
				return err
			})
			_, err := n.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: pod("web")})
			if err == nil || !strings.Contains(err.Error(), "no address is left") {
				t.Errorf("error is %v, want the first one: no address is left", err)
			}
		},
		"last address": func(t *testing.T, n *node) {
			n.net.room = 1
			n.loseSandbox(t, pod("gone"))
			wantOnly(t, n, n.run(t, pod("web")))
		},
		"name of the pod": func(t *testing.T, n *node) {
			n.loseSandbox(t, pod("web"))
			wantOnly(t, n, n.run(t, another()))
		},
		"name of the sandbox": func(t *testing.T, n *node) {
			n.loseSandbox(t, pod("web"))
			resp, err := n.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: pod("web"), RuntimeHandler: "crisp"})
			if err != nil {
				t.Fatal(err)
			}
			wantOnly(t, n, resp.PodSandboxId)
		},
		"name of the pod, while its network hangs": func(t *testing.T, n *node) {
			waiting, release := n.net.block()
			defer release()
			ctx, leave := context.WithCancel(t.Context())
			left := make(chan error, 1)
			go func() {
				_, err := n.server.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: pod("web")})
				left <- err
			}()
			<-waiting
			leave()
			<-left
			n.net.unblock()
			wantOnly(t, n, n.run(t, another()))
		},
		"PID namespace whose init has ended": func(t *testing.T, n *node) {
			config := pod("web")
			config.Linux.SecurityContext.NamespaceOptions.Pid = cri.NamespaceMode_POD
			id := n.loseSandbox(t, config)
			sb, err := n.runtime.Sandbox(id)
			if err != nil {
				t.Fatal(err)
			}
			n.server.events.Publish(oci.Event{Kind: oci.SandboxBroken, Sandbox: sb})
			n.server.work.wait()
			n.wantNothingLeft(t)
		},
		"name of the container": func(t *testing.T, n *node) {
			sandbox := n.run(t, pod("web"))
			waiting, release := n.store.block()
			n.lose(t, waiting, release, func(ctx context.Context) error {
				_, err := n.server.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: sandbox, Config: forever("app")})
				return err
			})
			if _, err := n.RemovePodSandbox(t.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: sandbox}); err != nil {
				t.Fatal(err)
			}
			again := pod("web")
			again.Metadata.Attempt++
			id := n.begin(t, n.run(t, again), forever("app"))
			if mounts := n.store.Mounts(); !slices.Equal(mounts, []string{id}) {
				t.Errorf("mounted are %v, want only %s", mounts, id)
			}
		},
		"process": func(t *testing.T, n *node) {
			id := n.begin(t, n.run(t, pod("web")), forever("app"))
			runs := make(chan struct{})
			go func() {
				for n.machine.Alive(id) < 2 {
					time.Sleep(time.Millisecond)
				}
				close(runs)
			}()
			n.lose(t, runs, func() {}, func(ctx context.Context) error {
				_, err := n.server.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: id, Cmd: []string{"testbin", "sleep", "for-ever"}})
				return err
			})
			if alive := n.machine.Alive(id); alive != 1 {
				t.Errorf("%d processes run, want only the container's", alive)
			}
		},
		"frozen container, and the place of its checkpoint": func(t *testing.T, n *node) {
			id := n.begin(t, n.run(t, pod("web")), forever("app"))
			at := filepath.Join(t.TempDir(), "checkpoint.tar")
			arrived, release := make(chan struct{}), n.machine.Block(wire.MethodCheckpoint)
			go func() {
				for len(n.machine.Frozen()) == 0 {
					time.Sleep(time.Millisecond)
				}
				close(arrived)
			}()
			request := &cri.CheckpointContainerRequest{ContainerId: id, Location: at}
			n.lose(t, arrived, release, func(ctx context.Context) error {
				_, err := n.server.CheckpointContainer(ctx, request)
				return err
			})
			n.wantThawed(t)
			if _, err := os.Stat(at); !os.IsNotExist(err) {
				t.Errorf("at the location of the checkpoint: %v, want nothing", err)
			}
			if _, err := n.CheckpointContainer(t.Context(), request); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) { lost(t, newNode(t)) })
	}
}

// What a caller that hung up leaves goes within seconds, however far it is. One whose time ran out
// will ask again, and so will one whose own clock was a moment faster than the server's.
func TestHungUpCallersAreNotWaitedFor(t *testing.T) {
	for _, test := range []struct {
		what   string
		limit  time.Duration // of the caller's time; 0 = none
		leaves time.Duration // when it hangs up
		took   time.Duration // by the work
		keeps  time.Duration // how long after it left the object or the work is there
	}{
		{"hung up, and finished", 0, time.Second, 2 * time.Second, hungUpLife},
		{"hung up long before the end", time.Hour, time.Second, time.Hour, hungUpLife},
		{"time is up", 10 * time.Second, time.Hour, 20 * time.Second, 10*time.Second + uncollectedLife},
		{"time is up by its own clock", 10 * time.Second, 10*time.Second - time.Millisecond, 20 * time.Second, 10*time.Second + time.Millisecond + uncollectedLife},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			b.took = test.took
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			if test.limit > 0 {
				ctx, leave = context.WithTimeout(t.Context(), test.limit)
				defer leave()
			}
			time.AfterFunc(test.leaves, leave)
			if _, err := b.call(ctx, "a", wants("x")); err == nil {
				t.Error("the caller got an object")
			}
			time.Sleep(test.keeps - time.Millisecond)
			synctest.Wait()
			if named, _ := b.left(); named != 1 {
				t.Errorf("%s: gone before %v", test.what, test.keeps)
			}
			time.Sleep(2 * time.Millisecond)
			synctest.Wait()
			if named, hidden := b.left(); named+hidden > 0 {
				t.Errorf("%s: still there after %v", test.what, test.keeps)
			}
			b.stop()
			b.work.wait()
		})
	}
}

// left counts the names that are taken, and the objects that no caller has.
func (b *bench) left() (named, hidden int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.byName), len(b.hidden)
}

// A caller that comes back in time keeps what it left, and is not robbed of it later.
func TestCallerThatComesBackIsNotRobbed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		ctx, hangUp := context.WithCancel(t.Context())
		first := b.goCall(ctx, "a", wants("x"))
		hangUp()
		<-first
		time.Sleep(hungUpLife - time.Second)
		id, err := b.call(t.Context(), "a", wants("x"))
		time.Sleep(2 * uncollectedLife)
		if err != nil || id == "" || b.builds != 1 || len(b.undone) > 0 {
			t.Errorf("got %q, %v after %d builds, undone %v", id, err, b.builds, b.undone)
		}
	})
}
