// Package oci runs OCI containers in sandboxes and remembers both across restarts of the daemon.
// It knows nothing of CRI, Kubernetes, images or CNI.
//
// The daemon is never the parent of a container. The executor is: one small process that owns
// the stdio, the log file and the exit record of every container and outlives the daemon
// (package oci/executor, reached through oci/wire). Open starts it if none runs. The daemon
// keeps a duplicate of each container's pidfd and stdio; if the executor dies, the next one gets
// them and the containers keep running.
//
// A sandbox is a set of namespaces, pinned by bind mounts, and a cgroup. There is no pause
// process. Only a sandbox whose containers share a PID namespace has a process of its own, its
// PID 1.
//
// A sandbox may have a user namespace, which then owns the others. The process that it was
// created with ends once all are pinned (userns.go).
//
// On disk, each file has one writer at a time and is replaced atomically. Files below Root
// survive a reboot, but not all of them a power cut (package checkpoint says why); files below
// State are void after a reboot, even if they are still there:
//
//	<root>/containers/<id>/record.json  its configuration
//	<root>/containers/<id>/exit.json    how it ended; by the executor,
//	                                    or by us for what never ran or was lost
//	<root>/containers/<id>/restore/     its checkpoint, until it runs (container.go)
//	<root>/sandboxes/<id>/record.json   its configuration, is it ready
//	<root>/freezes/<id>/record.json     containers that must not stay frozen
//	<state>/containers/<id>/status.json the latest status, written on every move and OOM kill
//	<state>/sandboxes/<id>/status.json  the latest state
//	<state>/sandboxes/<id>/ns/*, shm    the pins and the tmpfs of /dev/shm
//	<netns>/crisp-<id>                  the pin of the network namespace (namespaces.go)
//
// The lifecycles of both kinds of object are tables in state.go; a long operation is a state,
// not a held lock. recover.go defines what each state means after a crash. Each Container,
// Sandbox and store has one lock, and no goroutine holds two. All reads are of snapshots and
// never block.
package oci

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
)

// Records keeps records across restarts of the daemon; *checkpoint.Manager is one.
type Records interface {
	Keep(kind, id string, v any) error // a power cut may take it
	Load(kind, id string, v any) error // fault.NotFound; fault.WrongState: written by a newer crispd
	IDs(kind string) ([]string, error) // without corrupt ones, which are quarantined; fault.WrongState as in Load
	Remove(kind, id string) error      // with the record's directory; a missing one is no error
}

// The kinds of our records, which are also the names of our directories.
const (
	containerKind = "containers"
	sandboxKind   = "sandboxes"
)

// Options are the parts and settings of a Runtime. Root, State, Records and Log are required.
type Options struct {
	Root, State   string // the Root of Records is the same
	Records       Records
	NetNSDir      string // of network namespaces, may be shared with others; "" = with the other pins
	Rebooted      bool   // the machine was restarted after the records were written
	Executor      string // path of crisp-executor
	PodInit       string // path of crisp-podinit
	SystemdCgroup bool
	FastInit      bool // start containers by executor/fastinit where it can
	LogMaxLine    int  // bytes; 0 = 16384
	Log           *slog.Logger
	OnEvent       func(Event) // called outside all locks; must not block; may be nil

	// Store keeps the containers' descriptors while no daemon runs; nil = nothing does. Stored
	// has those of the previous daemon, by name.
	Store  DescriptorStore
	Stored map[string]int

	Dial func(context.Context) (ExecutorConn, error) // nil = the executor at <state>/executor.sock, started if needed
	Host Host                                        // nil = the kernel
}

// A Runtime holds the containers and sandboxes of one daemon.
type Runtime struct {
	o          Options
	log        *slog.Logger
	host       Host
	link       *link
	sandboxes  store[*Sandbox]
	containers store[*Container]

	kept     *keptBudget
	clock    atomic.Int64 // the latest time that now returned, ns since 1970
	work     sync.WaitGroup
	closing  context.Context // ends with Close
	stopWork context.CancelFunc
}

// Open finds or starts the executor, loads the records, determines what each object has become
// meanwhile, and removes what no record owns.
func Open(ctx context.Context, o Options) (_ *Runtime, err error) {
	r := &Runtime{o: o, log: o.Log, host: o.Host, kept: newKeptBudget()}
	r.sandboxes.what, r.containers.what = "sandbox", "container"
	r.closing, r.stopWork = context.WithCancel(context.WithoutCancel(ctx))
	if r.host == nil {
		r.host = newKernel(filepath.Join(o.State, sandboxKind), o.NetNSDir, o.SystemdCgroup)
	}
	for _, dir := range []string{
		filepath.Join(o.Root, containerKind), filepath.Join(o.Root, sandboxKind),
		filepath.Join(o.State, containerKind), filepath.Join(o.State, sandboxKind),
	} {
		if err := makePrivate(dir); err != nil {
			return nil, fmt.Errorf("make runtime directory: %w", err)
		}
	}
	defer func() {
		if err != nil {
			r.stopWork()
			r.work.Wait()
		}
	}()
	if err := r.load(); err != nil {
		return nil, err
	}
	r.takeStored(o.Stored)
	dial := o.Dial
	if dial == nil {
		dial = r.newSpawner().dial
	}
	r.link = newLink(dial, r.reconcile, r.handle, r.log)
	if err := r.link.connect(ctx); err != nil {
		return nil, fmt.Errorf("reach executor: %w", err)
	}
	r.work.Go(func() { r.link.keep(r.closing) })
	r.work.Go(func() { r.link.watch(r.closing) })
	r.work.Go(func() { r.restKept(r.closing) })
	r.recoverFreezes(ctx)
	r.finish(ctx)
	return r, nil
}

// makePrivate creates dir if needed, and keeps the host's other users out of it: it holds
// containers' files, with whatever modes these want. Users of user namespaces cannot pass
// either; their mounts are opened for them.
func makePrivate(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return os.Chmod(dir, 0o700) // an older crispd may have created it
}

// ExecutorRestarts returns how often, since Open, the executor was lost and replaced.
func (r *Runtime) ExecutorRestarts() uint64 {
	r.link.mu.Lock()
	defer r.link.mu.Unlock()
	return max(r.link.connects, 1) - 1
}

// ExecutorPid returns the PID of the current executor. The error is fault.Unavailable without one.
func (r *Runtime) ExecutorPid() (int, error) {
	if p, ok := r.link.current().(processConn); ok {
		return p.Pid()
	}
	return 0, fault.Unavailable.Errorf("no executor")
}

// ExecutorProfile returns a profile of the current executor, see wire.ProfileRequest. The error is
// fault.Unavailable without an executor, and fault.NotFound if it has no profile of that name.
func (r *Runtime) ExecutorProfile(ctx context.Context, name string, debug int) ([]byte, error) {
	var reply wire.ProfileReply
	_, err := r.link.call(ctx, wire.MethodProfile, wire.ProfileRequest{Name: name, Debug: debug}, &reply)
	return reply.Data, err
}

// Close disconnects from the executor. Containers and executor keep running.
func (r *Runtime) Close() error {
	r.stopWork()
	err := r.link.close()
	r.work.Wait()
	for _, c := range r.containers.list() {
		c.release()
	}
	for _, sb := range r.sandboxes.list() {
		sb.release()
		sb.counters.close()
	}
	return err
}

// Shutdown removes all containers and sandboxes, ends the executor and undoes what Open set up
// in the kernel. Afterwards only Close may be called.
func (r *Runtime) Shutdown(ctx context.Context) error {
	var errs []error
	for _, sb := range r.sandboxes.list() {
		if sb.State() != SandboxRemoving {
			errs = append(errs, sb.BeginStop())
		}
	}
	for _, c := range r.containers.list() {
		errs = append(errs, c.Remove(ctx))
	}
	for _, sb := range r.sandboxes.list() {
		if sb.State() != SandboxRemoving {
			errs = append(errs, sb.Unpin(ctx), sb.Stopped())
		}
		errs = append(errs, sb.Remove(ctx))
	}
	errs = append(errs, r.link.shutdown(ctx), r.host.Close())
	if r.o.Dial == nil {
		errs = append(errs, removeExecutorCgroup(r.o.State)) // it could not do so from inside
	}
	return errors.Join(errs...)
}

// NewID returns a fresh ID of 64 hexadecimal digits.
func NewID() string {
	var b [32]byte
	rand.Read(b[:]) // never fails: it crashes the program instead
	return hex.EncodeToString(b[:])
}

// wrongClock is how far the clock must have been ahead for new objects to get times before those
// of old ones.
const wrongClock = time.Minute

// now returns the time. It is later than after and than any time returned before: lists are
// sorted by creation time, so no two objects may have the same. But if the clock turns out to
// have been ahead, now follows it back: otherwise no object would have an age until that time is
// reached again, and the kubelet removes dead containers by their age.
func (r *Runtime) now(after time.Time) time.Time {
	for {
		wall, last := time.Now().UnixNano(), r.clock.Load()
		t := wall
		if last >= wall && last-wall <= int64(wrongClock) {
			t = last + 1
		}
		if !r.clock.CompareAndSwap(last, t) {
			continue
		}
		if !after.IsZero() { // else its number is undefined
			t = max(t, after.UnixNano()+1)
		}
		return time.Unix(0, t)
	}
}
