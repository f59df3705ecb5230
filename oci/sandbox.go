package oci

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/userns"
)

// SandboxConfig is the configuration of a sandbox. It never changes, except for Extra.
type SandboxConfig struct {
	ID, Name    string // ID "" = a new one; Name "" = none; attempts at the same thing differ in what follows the last "_"
	Hostname    string // ignored with HostNetwork: the UTS namespace is then the host's too
	HostNetwork bool
	HostIPC     bool
	HostPID     bool // creates nothing; recorded for the caller
	SharedPID   bool // the sandbox has its own PID namespace, with our init in it
	// IDs gives it its own user namespace, which owns the others; nil = the host's. It excludes
	// HostIPC and HostPID: fault.Invalid.
	IDs *userns.Map
	// Sysctls of the sandbox's own namespaces; any other is fault.Invalid. Names are as in
	// sysctl(8), with dots or with slashes.
	Sysctls map[string]string
	// CgroupParent is an absolute cgroupfs path or, with the systemd driver, the name of a
	// slice. "" = a cgroup of its own below /crisp (crisp.slice), which is removed with the
	// sandbox.
	CgroupParent string
	// Shim is the containerd shim that runs the sandbox's containers, and one of its own before
	// them, which StartShim starts; nil = none. It excludes SharedPID and IDs: fault.Invalid.
	Shim *Shim `json:",omitempty"`
	// Label is the SELinux label of the init, FileLabel that of its program, which all sandboxes
	// share, and MountLabel that of the sandbox's files; "" = the policy's choice.
	Label, FileLabel, MountLabel string
	Extra                        []byte // the caller's, opaque
}

// A Sandbox is a set of pinned namespaces, a cgroup, and the containers in it.
//
// The fields above mu are set before the sandbox can be found. The record and the status are
// replaced under mu and read as snapshots without it.
type Sandbox struct {
	rt      *Runtime
	id      string
	created time.Time
	dir     string // below Root
	runDir  string // gone after a reboot
	netNS   string // where the network namespace is pinned, if there is one

	counters keptFiles

	mu         sync.Mutex
	record     atomic.Pointer[sandboxRecord]
	status     atomic.Pointer[sandboxStatus]
	containers map[string]*Container // adopted and not yet removed; guarded by mu
	fds        []keptFD              // the init's pidfd, for the executor's successor; guarded by mu
}

// sandboxRecord is the part of a sandbox that outlives the daemon.
type sandboxRecord struct {
	CreatedAt time.Time
	Config    SandboxConfig
	Ready     bool // it has been
}

// RecordVersion keeps crispds away that do not know shims, or that one has made the sandbox: they would
// start the sandbox's containers without it, or ask it for a container.
func (r sandboxRecord) RecordVersion() int {
	switch {
	case r.Config.Shim == nil:
		return 1
	case r.Config.Shim.SandboxAPI:
		return 3
	}
	return 2
}

// sandboxStatus is the part that changes, in the form of status.json.
type sandboxStatus struct {
	State     SandboxState
	Pid       int               // of the init of SharedPID, 0 without one
	StartTime uint64            // of Pid
	Cgroups   map[string]string // of Pid: controller → absolute directory
}

func (r *Runtime) newSandbox(id string, rec *sandboxRecord) *Sandbox {
	sb := &Sandbox{
		rt: r, id: id, created: rec.CreatedAt,
		dir:        filepath.Join(r.o.Root, sandboxKind, id),
		runDir:     filepath.Join(r.o.State, sandboxKind, id),
		netNS:      r.netNSPath(id),
		counters:   keptFiles{budget: r.kept},
		containers: make(map[string]*Container),
	}
	sb.record.Store(rec)
	sb.status.Store(&sandboxStatus{})
	return sb
}

func (sb *Sandbox) ID() string { return sb.id }

func (sb *Sandbox) name() string { return sb.record.Load().Config.Name }

// Config returns the sandbox's configuration. It points to shared data, which is read-only.
func (sb *Sandbox) Config() SandboxConfig { return sb.record.Load().Config }

// CreatedAt returns when the sandbox was created. It is unique among the objects of a Runtime,
// unless the clock was once ahead.
func (sb *Sandbox) CreatedAt() time.Time { return sb.created }

// Dir returns the sandbox's directory below Root, for resolv.conf and the like.
func (sb *Sandbox) Dir() string { return sb.dir }

// RunDir returns the sandbox's directory that is void after a reboot.
func (sb *Sandbox) RunDir() string { return sb.runDir }

// NetNS returns the path of the network namespace; "" if it is the host's. The path stays the
// same after the namespace is gone.
func (sb *Sandbox) NetNS() string { return sb.NamespacePath("net") }

// NamespacePath returns the path of the sandbox's namespace of that kind, "net", "uts", "ipc",
// "pid" or "user"; "" if the sandbox has none.
func (sb *Sandbox) NamespacePath(kind string) string {
	cfg, pins := sb.record.Load().Config, sb.pins()
	own := map[string]bool{"net": pins.Net, "uts": pins.UTS, "ipc": pins.IPC, "pid": cfg.SharedPID, "user": pins.IDs != nil}
	if !own[kind] {
		return ""
	}
	return pins.path(kind)
}

// ShmDir returns the tmpfs for /dev/shm, or the host's with HostIPC.
func (sb *Sandbox) ShmDir() string {
	if sb.record.Load().Config.HostIPC {
		return "/dev/shm"
	}
	return filepath.Join(sb.runDir, "shm")
}

// CgroupParent returns the cgroup for the sandbox's containers: the caller's, or the sandbox's
// own.
func (sb *Sandbox) CgroupParent() string {
	if parent := sb.record.Load().Config.CgroupParent; parent != "" {
		return parent
	}
	return ownCgroup(sb.id, sb.rt.o.SystemdCgroup)
}

// State returns a snapshot and does not block.
func (sb *Sandbox) State() SandboxState { return sb.status.Load().State }

// InitPid returns the PID, in the host's namespace, of the sandbox's init or of what its shim runs
// it in; 0 if it has none any more, or never had one.
func (sb *Sandbox) InitPid() int {
	st := sb.status.Load()
	if st.State > SandboxReady {
		return 0
	}
	return st.Pid
}

func (sb *Sandbox) Extra() []byte { return sb.record.Load().Config.Extra }

// EditExtra replaces Extra by what change makes of it, on disk first, one change after another. The error
// is fault.WrongState if the sandbox is being removed.
func (sb *Sandbox) EditExtra(change func(extra []byte) ([]byte, error)) error {
	return sb.edit(func(rec *sandboxRecord) (err error) {
		rec.Config.Extra, err = change(rec.Config.Extra)
		return err
	})
}

// Containers returns the sandbox's containers, oldest first. Once the sandbox is Stopping, none
// is added.
func (sb *Sandbox) Containers() []*Container {
	sb.mu.Lock()
	all := make([]*Container, 0, len(sb.containers))
	for _, c := range sb.containers {
		all = append(all, c)
	}
	sb.mu.Unlock()
	slices.SortFunc(all, func(a, b *Container) int { return a.created.Compare(b.created) })
	return all
}

// Ready completes the creation, on disk first, and replaces Extra. The error is fault.WrongState if
// the sandbox is being stopped already.
func (sb *Sandbox) Ready(extra []byte) error {
	if st := sb.State(); st != SandboxCreating {
		return fault.WrongState.Errorf("sandbox %s is %s: cannot apply %q", sb.id, st, sandboxReady)
	}
	err := sb.edit(func(rec *sandboxRecord) error {
		rec.Ready, rec.Config.Extra = true, extra
		return nil
	})
	if err != nil {
		return err
	}
	if _, err := sb.move(sandboxReady, nil); err != nil {
		return err
	}
	sb.emit(SandboxCreated)
	return nil
}

// adopt adds c to the sandbox's containers. Only a Ready sandbox accepts one.
func (sb *Sandbox) adopt(c *Container) error {
	_, err := sb.move(sandboxAdopt, func(*sandboxStatus) { sb.containers[c.id] = c })
	return err
}

// restore is adopt for containers loaded from disk.
func (sb *Sandbox) restore(c *Container) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	sb.containers[c.id] = c
}

func (sb *Sandbox) disown(c *Container) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	delete(sb.containers, c.id)
}

// move takes sb along event e; edit, if not nil, is called under the lock if e is legal. The new
// status is on disk before it can be seen. changed reports whether the state is different now.
func (sb *Sandbox) move(e sandboxEvent, edit func(*sandboxStatus)) (changed bool, err error) {
	sb.mu.Lock()
	defer sb.mu.Unlock()

	st := *sb.status.Load()
	to, ok := sandboxNext[st.State][e]
	if !ok {
		return false, fault.WrongState.Errorf("sandbox %s is %s: cannot apply %q", sb.id, st.State, e)
	}
	changed = st.State != to
	st.State = to
	if changed {
		if err := sb.save(&st); err != nil {
			return false, err
		}
	}
	if edit != nil {
		edit(&st)
	}
	return changed, nil
}

// note replaces the status without a move.
func (sb *Sandbox) note(edit func(*sandboxStatus)) error {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	st := *sb.status.Load()
	edit(&st)
	return sb.save(&st)
}

// save writes and publishes st. The caller holds mu.
func (sb *Sandbox) save(st *sandboxStatus) error {
	if err := atomicfile.WriteJSON(filepath.Join(sb.runDir, "status.json"), st); err != nil {
		return fmt.Errorf("save status of sandbox %s: %w", sb.id, err)
	}
	sb.status.Store(st)
	return nil
}

// edit replaces the sandbox's record, first on disk.
func (sb *Sandbox) edit(change func(*sandboxRecord) error) error {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.status.Load().State == SandboxRemoving {
		return fault.WrongState.Errorf("sandbox %s is removing: cannot change it", sb.id)
	}
	rec := *sb.record.Load()
	if err := change(&rec); err != nil {
		return err
	}
	if err := sb.rt.o.Records.Keep(sandboxKind, sb.id, rec); err != nil {
		return fmt.Errorf("save sandbox %s: %w", sb.id, err)
	}
	sb.record.Store(&rec)
	return nil
}

func (sb *Sandbox) emit(kind EventKind) {
	sb.rt.emit(Event{Kind: kind, Sandbox: sb, At: time.Now()})
}

// keep keeps the init's pidfd.
func (sb *Sandbox) keep(files []*os.File) {
	kept, err := keepFDs(files)
	if err != nil {
		sb.rt.log.Warn("pidfd could not be kept", "sandbox", sb.id, "err", err)
	}
	sb.mu.Lock()
	defer sb.mu.Unlock()
	closeFDs(sb.fds)
	sb.fds = kept
}

func (sb *Sandbox) release() { sb.keep(nil) }

func (sb *Sandbox) lend() ([]*os.File, error) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	return dupFDs(sb.fds)
}

func (sb *Sandbox) pins() Pins {
	cfg := sb.record.Load().Config
	return Pins{
		Dir: sb.runDir, NetNS: sb.netNS,
		Net: !cfg.HostNetwork, UTS: !cfg.HostNetwork, IPC: !cfg.HostIPC,
		IDs: cfg.IDs, Hostname: cfg.Hostname, Sysctls: cfg.Sysctls,
	}
}

// A stand-in is an empty cgroup named after the sandbox, beside those of its containers.
// Monitors that find pods by their cgroups look for the cgroup of a pause container to learn
// about the pod's network; crisp has no such container. Nothing else needs it, so it exists only
// once a monitor has called.
//
// Below a slice, too, it is a plain directory: a scope would need a process, and systemd removes
// empty cgroups with the slice. Its name is just the ID, which the kubelet recognizes with
// either driver.

// HasStandIn reports whether the sandbox can have a stand-in. It cannot, and needs none, if it
// has an init, or a container of its own, whose cgroup has the sandbox's name, or a cgroup of its own.
func (sb *Sandbox) HasStandIn() bool {
	return sb.record.Load().Config.CgroupParent != "" && !sb.hasInit()
}

// RenewStandIn creates the stand-in, or replaces it: whoever watches cgroups then examines the
// sandbox again. Only a Ready sandbox has one (else fault.WrongState), and Unpin removes it with
// the namespaces.
func (sb *Sandbox) RenewStandIn() error {
	if !sb.HasStandIn() {
		return fault.Invalid.Errorf("sandbox %s has no stand-in", sb.id)
	}
	sb.mu.Lock() // Unpin comes after Ready
	defer sb.mu.Unlock()
	if st := sb.State(); st != SandboxReady {
		return fault.WrongState.Errorf("sandbox %s is %s: it has no stand-in", sb.id, st)
	}
	return sb.setStandIn(false, true)
}

// RemoveStandIn removes the stand-in, if there is one.
func (sb *Sandbox) RemoveStandIn() error {
	if !sb.HasStandIn() {
		return nil
	}
	return sb.setStandIn(false)
}

func (sb *Sandbox) setStandIn(presence ...bool) error {
	for _, present := range presence {
		if err := sb.rt.host.EmptyCgroup(sb.CgroupParent(), sb.id, present); err != nil {
			return fmt.Errorf("stand-in of sandbox %s: %w", sb.id, err)
		}
	}
	return nil
}

func (k *kernel) EmptyCgroup(parent, name string, present bool) error {
	dirs, err := cgroupDirs(parent)
	if !present {
		if err != nil {
			return nil // there can be none without a parent
		}
		for controller, dir := range dirs {
			dirs[controller] = filepath.Join(dir, name)
		}
		return removeCgroups(name, dirs)
	}
	errs := []error{err}
	for _, dir := range dirs { // several controllers may share a directory
		err := os.Mkdir(filepath.Join(dir, name), 0o755)
		if !errors.Is(err, fs.ErrExist) && !errors.Is(err, fs.ErrNotExist) { // no such hierarchy, or no such parent
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
