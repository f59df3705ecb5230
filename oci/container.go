package oci

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/crilog"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/oci/wire"
)

// ContainerConfig is the configuration of a new container.
type ContainerConfig struct {
	ID, Name, SandboxID   string // ID "" = a new one; Name "" = none, else as for a sandbox
	Spec                  *specs.Spec
	Env                   [][]byte // if not nil, replaces Spec.Process.Env: may hold values that are not UTF-8
	PIDTarget             string   // ID of the container whose PID namespace is joined; looked up in Start
	Stdin, StdinOnce, TTY bool
	LogPath               string       // absolute; "" = discard
	LogLimit              crilog.Limit `json:",omitzero"`
	Engine                string       `json:",omitempty"` // path of the OCI runtime that runs it; "" = libcontainer
	Shim                  *Shim        `json:",omitempty"` // the containerd shim that runs it; nil = its sandbox's, if that has one
	Restore               string       `json:",omitempty"` // the RestoreDir with the checkpoint to restore the processes from, removed once they run; "" = start Spec.Process
	Extra                 []byte       // the caller's, opaque
}

// A Container is one container, from Create until Remove returns.
//
// The fields above mu are set before the container can be found. The record and the status are
// replaced under mu and read as snapshots without it.
type Container struct {
	rt      *Runtime
	sandbox *Sandbox // nil if its record was lost
	id      string
	created time.Time
	runDir  string

	settled   chan struct{} // closed when the outcome of Start is known
	done      chan struct{} // closed by the move to Exited
	notified  chan struct{} // closed when listeners have been notified of that
	stopAgain chan struct{} // wakes terminate: Stop was called again
	applying  chan struct{} // full while a change is being applied
	orphan    atomic.Bool   // loaded from disk: no Start of this daemon will settle it
	forgotten atomic.Bool   // the executor has forgotten it, see Forget
	counters  keptFiles

	mu     sync.Mutex
	record atomic.Pointer[containerRecord]
	status atomic.Pointer[containerStatus]
	fds    []keptFD  // duplicates of the executor's descriptors, for its successor; guarded by mu
	killAt time.Time // the earliest deadline of all Stops, zero = none; guarded by mu

	storing sync.Mutex // held during calls to Options.Store
	stored  []string   // names of the descriptors that it keeps; guarded by storing
}

// containerRecord is the part of a container that outlives the daemon.
type containerRecord struct {
	CreatedAt time.Time
	Config    ContainerConfig
}

// containerStatus is Status with fields that only this package needs, in the form of
// status.json.
type containerStatus struct {
	Status
	StartTime uint64            // of Pid: field 22 of /proc/<pid>/stat
	Cgroups   map[string]string // controller → absolute directory; "" = the v2 one
	OOMKills  int64             `json:",omitempty"` // that an executor has reported
}

// Status is the part of a container that changes. It is a plain value: a copy
// is a snapshot.
type Status struct {
	State                 State
	Pid                   int // in the host's namespace; 0 unless alive
	StartedAt, FinishedAt time.Time
	ExitCode              int32  // 128+n for signal n
	Reason                string // Completed, Error, OOMKilled, StartError, Unknown or Reboot
	Message               string
	OOMKilled             bool
}

func (r *Runtime) newContainer(id string, sb *Sandbox, rec *containerRecord) *Container {
	c := &Container{
		rt: r, sandbox: sb, id: id, created: rec.CreatedAt,
		runDir:    filepath.Join(r.o.State, containerKind, id),
		settled:   make(chan struct{}),
		stopAgain: make(chan struct{}, 1),
		applying:  make(chan struct{}, 1),
		done:      make(chan struct{}),
		notified:  make(chan struct{}),
		counters:  keptFiles{budget: r.kept},
	}
	c.record.Store(rec)
	c.status.Store(&containerStatus{})
	return c
}

func (c *Container) ID() string { return c.id }

func (c *Container) name() string { return c.record.Load().Config.Name }

// Config returns the container's configuration, including updates. It points to shared data,
// which is read-only.
func (c *Container) Config() ContainerConfig { return c.record.Load().Config }

func (c *Container) SandboxID() string { return c.record.Load().Config.SandboxID }

// CreatedAt returns when the container was created. It is unique among the objects of a Runtime,
// unless the clock was once ahead.
func (c *Container) CreatedAt() time.Time { return c.created }

// Status returns a snapshot and does not block.
func (c *Container) Status() Status { return c.status.Load().Status }

// Done is closed once the container is Exited: its exit is on disk and none of its processes is
// left.
func (c *Container) Done() <-chan struct{} { return c.done }

func (c *Container) Extra() []byte { return c.record.Load().Config.Extra }

// edit replaces the container's record, first on disk.
func (c *Container) edit(change func(*ContainerConfig) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.status.Load().State == Removing {
		return fault.WrongState.Errorf("container %s is removing: cannot change it", c.id)
	}
	rec := *c.record.Load()
	if err := change(&rec.Config); err != nil {
		return err
	}
	if err := c.rt.o.Records.Keep(containerKind, c.id, rec); err != nil {
		return fmt.Errorf("save container %s: %w", c.id, err)
	}
	c.record.Store(&rec)
	return nil
}

// move takes c along event e; edit, if not nil, records the event's data.
//
// The new status is on disk before it can be seen: after a crash in between we repeat work, but
// never report work that did not happen.
func (c *Container) move(e event, edit func(*containerStatus)) error {
	c.mu.Lock()
	defer c.mu.Unlock()

	st := *c.status.Load()
	to, ok := next[st.State][e]
	if !ok {
		return fault.WrongState.Errorf("container %s is %s: cannot apply %q", c.id, st.State, e)
	}
	same := st.State == to && edit == nil
	st.State = to
	if edit != nil {
		edit(&st)
	}
	if same {
		return nil // Stop, Remove: again
	}
	if err := c.save(st); err != nil {
		if e != exited && e != started {
			return fmt.Errorf("save status of container %s: %w", c.id, err)
		}
		// It has happened even if it cannot be saved. A later daemon asks the executor, and
		// exit.json takes precedence over any status.
		c.rt.log.Error("status could not be saved", "container", c.id, "err", err)
	}
	c.status.Store(&st)
	if to == Exited {
		close(c.done)
	}
	return nil
}

// save writes the status. The caller holds mu.
func (c *Container) save(st containerStatus) error {
	return atomicfile.WriteJSON(filepath.Join(c.runDir, "status.json"), st)
}

func (c *Container) exitPath() string {
	return filepath.Join(c.rt.o.Root, containerKind, c.id, "exit.json")
}

func (c *Container) emit(kind EventKind) {
	c.rt.emit(Event{Kind: kind, Sandbox: c.sandbox, Container: c, At: time.Now()})
}

// keep keeps the descriptors that came with the answer to MethodRun or MethodDescriptors.
// Without them the container loses its stdio if the executor dies, and only then.
func (c *Container) keep(files []*os.File) {
	kept, err := keepFDs(files)
	if err != nil {
		c.rt.log.Warn("stdio could not be kept", "container", c.id, "err", err)
	}
	c.mu.Lock()
	over := c.status.Load().State >= Exited
	if over {
		closeFDs(kept)
	} else {
		closeFDs(c.fds)
		c.fds = kept
	}
	c.mu.Unlock()
	if !over && c.rt.o.Store != nil {
		c.rt.work.Go(c.store)
	}
}

// fetch gets and keeps the descriptors of a container that was started before this daemon.
func (c *Container) fetch(ctx context.Context, conn ExecutorConn) {
	files, err := conn.Call(ctx, wire.MethodDescriptors, wire.Ref{ID: c.id}, nil)
	if err != nil {
		c.rt.log.Warn("stdio could not be fetched", "container", c.id, "err", err)
		return
	}
	c.keep(files)
}

// fetchAll fetches the descriptors of all running containers from an executor, before their
// states are known. A descriptor that cannot be fetched is lost only if that executor dies
// before reconcile.
func (r *Runtime) fetchAll(ctx context.Context, conn ExecutorConn) {
	var infos []wire.Info
	if _, err := conn.Call(ctx, wire.MethodList, nil, &infos); err != nil {
		r.log.Warn("stdio could not be fetched", "err", err)
		return
	}
	for _, info := range infos {
		if info.Exit != nil {
			continue
		}
		if c, ok := r.containers.exact(info.ID); ok {
			c.fetch(ctx, conn)
		} else if sb, ok := r.sandboxes.exact(info.ID); ok {
			if err := sb.fetch(ctx, conn); err != nil {
				r.log.Warn("pidfd could not be kept", "sandbox", sb.id, "err", err)
			}
		}
	}
}

// release closes the kept descriptors and the open counter files.
func (c *Container) release() {
	c.counters.close()
	c.mu.Lock()
	defer c.mu.Unlock()
	closeFDs(c.fds)
	c.fds = nil
}

// lend returns duplicates of the kept descriptors, for the caller to send and close.
func (c *Container) lend() ([]*os.File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return dupFDs(c.fds)
}

// Create prepares a container without running anything in it. Its sandbox must be Ready (else
// fault.WrongState) and its name free (else fault.Exists). If a step fails, the steps before it
// are undone, last first.
func (r *Runtime) Create(ctx context.Context, cfg ContainerConfig) (_ *Container, err error) {
	var steps undo.Stack
	defer steps.RunIf(&err)

	if cfg.ID == "" {
		cfg.ID = NewID()
	}
	if cfg.Spec == nil || cfg.Spec.Process == nil || cfg.Spec.Root == nil {
		return nil, fault.Invalid.Errorf("container %s: its spec has no process or no root", cfg.ID)
	}
	sb, err := r.sandboxes.get(cfg.SandboxID)
	if err != nil {
		return nil, err
	}
	cfg.SandboxID = sb.ID()
	cfg.Shim = shimOf(sb, cfg.Shim)
	if cfg.Shim != nil && (cfg.PIDTarget != "" || cfg.Engine != "") {
		return nil, fault.Invalid.Errorf("container %s of %s cannot join a PID namespace or have an engine", cfg.ID, cfg.Shim.Path)
	}
	release, err := r.containers.reserve(cfg.Name, cfg.ID)
	if err != nil {
		return nil, err
	}
	steps.Add("name reservation", func() error { release(); return nil })

	rec := &containerRecord{CreatedAt: r.now(r.containers.newest(cfg.Name)), Config: cfg}
	c := r.newContainer(cfg.ID, sb, rec)
	if err := os.Mkdir(c.runDir, 0o700); err != nil {
		return nil, fmt.Errorf("make directory of container %s: %w", c.id, err)
	}
	steps.Add("container directory", func() error { return os.RemoveAll(c.runDir) })
	steps.Add("container record", func() error { return r.o.Records.Remove(containerKind, c.id) })
	if err := r.o.Records.Keep(containerKind, c.id, rec); err != nil {
		return nil, fmt.Errorf("save container %s: %w", c.id, err)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := sb.adopt(c); err != nil {
		return nil, err
	}
	r.containers.add(c) // visible from here on; nothing below may fail
	c.emit(ContainerCreated)
	return c, nil
}

// Warm tells the executor that a start will follow, which makes it quicker: the waits for the
// kernel happen while the container is still being created. Warm does not wait for the answer,
// and an executor that does not know the call does no harm.
func (r *Runtime) Warm() {
	r.work.Go(func() {
		ctx, cancel := context.WithTimeout(r.closing, 5*time.Second)
		defer cancel()
		_, _ = r.link.call(ctx, wire.MethodWarm, nil, nil)
	})
}

// RestoreDir creates a directory for the checkpoint from which a container will be restored,
// before a container with this ID exists. The caller fills it and names it in
// ContainerConfig.Restore: Create then makes the container its owner, and it is removed with the
// container or once the processes run. drop removes it if Create is not called; if the daemon
// dies first, the next Open does.
func (r *Runtime) RestoreDir(id string) (dir string, drop func() error, err error) {
	own := filepath.Join(r.o.Root, containerKind, id)
	dir = filepath.Join(own, "restore")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", nil, fmt.Errorf("make restore directory of container %s: %w", id, err)
	}
	return dir, func() error { return os.RemoveAll(own) }, nil
}
