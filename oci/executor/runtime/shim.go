package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/manager"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/executor/proc"
	"github.com/crisp-cri/crisp/oci/executor/shim"
	"github.com/crisp-cri/crisp/oci/executor/stdio"
	"github.com/crisp-cri/crisp/oci/wire"
)

// A Task is a container that a containerd shim runs. Its process is not ours: it is a child of the
// shim's, or on another kernel. The shim starts it, signals it and says how it ended; its stdio comes
// by FIFOs. So a Task goes on while no executor runs, and the next one asks the shim again.
//
// A shim may hang in any call, so each is bounded. One that does not answer when a container has to
// end is killed, with all containers that it runs; what they leave behind is removed without it.
//
// Data that must outlive the executor is in the container's bundle. All bundles are siblings, named
// after their containers: shims rely on that.
type Task struct {
	wire.Shim                    // Sandbox is never ""
	TTY, Stdin bool              // of its process
	Address    *shim.Address     // nil = the shim has not been started
	ShimPID    int               // as the shim says; 0 = unknown
	Keeper     uint64            // the Number of the shim's Keeper; 0 = it has none
	OwnPID     bool              // as container.ownPID
	Group      map[string]string // the cgroups that it was given, by controller
	Cgroups    map[string]string // those of them that have its process
	Above      map[string]string // a cgroup above its own, or its sandbox's, that has it instead, with the memory controller
	Closed     bool              // its stdin was closed
	Deleted    bool              // its shim has forgotten it

	all     *tasks
	id, dir string
	saving  sync.Mutex
	dump    atomic.Pointer[context.CancelFunc] // ends its checkpoint; nil = none is made
	process *proc.Process
	insist  sync.Once
	looking atomic.Bool
	ooms    atomic.Int64
}

// A tasks has what the containers of shims share.
type tasks struct {
	root    string // the executor's own directory
	events  string // the path of the socket for events
	sockets string // a directory for those of shims; "" = they choose
	criu    *CRIU
	log     *slog.Logger

	listener
	mu    sync.Mutex
	links map[string]*shimLink // by the container that has the shim; guarded by mu
}

// A shimLink is the connection to a shim.
type shimLink struct {
	log  *slog.Logger
	mute atomic.Int64 // when a call had no answer, in ns since 1970; 0 = the last one had

	keeping sync.Mutex // while the shim's Keeper is changed

	mu     sync.Mutex
	client *shim.Client // nil = not connected yet; guarded by mu
	output *shim.Log    // what the shim prints; nil = not read by us; guarded by mu
	last   []string     // the last lines of that; guarded by mu
	why    string       // why we have killed it; guarded by mu

	unkept bool // that its Keeper has not what it should was told; guarded by mu
}

// Bounds of calls.
const (
	shimStart = time.Minute      // of the program and of a container: that of a VM
	shimCall  = 10 * time.Second // of the others
	shimStats = 3 * time.Second  // of what is asked every few seconds for all containers
	shimDump  = 10 * time.Minute // of writing and reading a checkpoint, for whose client it may be less
)

// shimFile is the file in a bundle with a Task.
const shimFile = "shim.json"

// shimRoot is the directory in a bundle where a shim makes the root, if it is given it as a mount.
const shimRoot = "rootfs"

func newTasks(root, state string, criu *CRIU, log *slog.Logger, oom func(id string, kills int64)) *tasks {
	a := &tasks{
		root: root, events: filepath.Join(state, "shims.sock"), sockets: filepath.Join(state, "s"), criu: criu, log: log,
		links: make(map[string]*shimLink), listener: listener{known: make(map[string]*Task), oom: oom},
	}
	if len(a.sockets) > maxSockets {
		a.sockets = ""
	}
	return a
}

// maxSockets bounds the path of a directory for sockets, in bytes: 107 (unix(7)) less a slash and a
// hash, which shims have as names.
const maxSockets = 107 - 1 - 64

func (a *tasks) bundle(id string) string { return filepath.Join(a.root, "bundles", id) }

// create makes the bundle of a container.
func (a *tasks) create(p *Plan) (_ *Task, err error) {
	of := *p.req.Shim
	of.Pod = nil // it is of use once
	if !filepath.IsAbs(of.Path) || filepath.Base(p.ID) != p.ID || of.Sandbox != "" && filepath.Base(of.Sandbox) != of.Sandbox {
		return nil, fault.Invalid.Errorf("shim %q of container %q, in sandbox %q", of.Path, p.ID, of.Sandbox)
	}
	t := &Task{Shim: of, TTY: p.TTY, Stdin: p.Stdin, all: a, id: p.ID, dir: a.bundle(p.ID)}
	if t.Sandbox == "" {
		t.Sandbox = p.ID
	}
	if t.OwnPID, t.Group, err = a.cgroups(p); err != nil {
		return nil, err
	}
	if t.Sandbox != t.id {
		first := a.find(t.Sandbox)
		if first == nil || first.Address == nil {
			return nil, fault.WrongState.Errorf("container %s: container %s, which has its shim, does not run", t.id, t.Sandbox)
		}
		t.Address, t.ShimPID, t.Keeper = first.Address, first.ShimPID, first.Keeper
	}
	if err := os.MkdirAll(t.dir, 0o711); err != nil {
		return nil, err
	}
	return t, t.save()
}

// cgroups returns whether the container has its own PID namespace, and the cgroups that it is given.
func (a *tasks) cgroups(p *Plan) (ownPID bool, paths map[string]string, err error) {
	if p.spec.Linux.CgroupsPath == "" {
		return false, nil, fault.Invalid.Errorf("spec of container %s has no cgroups path", p.ID)
	}
	for _, ns := range p.spec.Linux.Namespaces {
		ownPID = ownPID || ns.Type == specs.PIDNamespace && ns.Path == ""
	}
	config, err := specconv.CreateCgroupConfig(&specconv.CreateOpts{
		CgroupName: p.ID, UseSystemdCgroup: p.req.SystemdCgroup,
		Spec: &specs.Spec{Linux: &specs.Linux{CgroupsPath: p.spec.Linux.CgroupsPath}},
	}, nil)
	if err != nil {
		return false, nil, fault.Invalid.Errorf("cgroup of container %s: %w", p.ID, err)
	}
	groups, err := manager.New(config)
	if err != nil {
		return false, nil, fault.Invalid.Errorf("cgroup of container %s: %w", p.ID, err)
	}
	return ownPID, groups.GetPaths(), nil
}

// find returns the Task of a container from its bundle; nil = no shim runs it.
func (a *tasks) find(id string) *Task {
	t := &Task{all: a, id: id, dir: a.bundle(id)}
	if atomicfile.ReadJSON(filepath.Join(t.dir, shimFile), t) != nil || t.Path == "" {
		return nil
	}
	return t
}

// save writes what a later executor needs.
func (t *Task) save() error {
	t.saving.Lock()
	defer t.saving.Unlock()
	return atomicfile.WriteJSON(filepath.Join(t.dir, shimFile), t)
}

// note changes t and saves it.
func (t *Task) note(change func()) {
	t.saving.Lock()
	change()
	t.saving.Unlock()
	if err := t.save(); err != nil {
		t.all.log.Warn("state of a shim's container was not saved", "container", t.id, "err", err)
	}
}

// program returns the shim's program for this container.
func (t *Task) program() shim.Program {
	return shim.Program{
		Path: t.Path, Namespace: wire.ShimNamespace(t.all.root), ID: t.id, Bundle: t.dir,
		Events: t.publishes(), Sockets: t.all.sockets, Options: t.options(), Env: []string{proc.Mark(t.all.root, t.id)},
	}
}

func (t *Task) options() *shim.Any {
	if t.OptionsType == "" {
		return nil
	}
	return &shim.Any{TypeURL: t.OptionsType, Value: t.Options}
}

// link returns the connection of t's shim.
func (t *Task) link() *shimLink {
	t.all.mu.Lock()
	defer t.all.mu.Unlock()
	l := t.all.links[t.Sandbox]
	if l == nil {
		l = &shimLink{log: t.all.log}
		t.all.links[t.Sandbox] = l
	}
	return l
}

// client returns a connection to the shim, a new one if the last has ended.
func (t *Task) client(ctx context.Context) (*shim.Client, error) {
	l := t.link()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.client != nil {
		select {
		case <-l.client.Done():
		default:
			return l.client, nil
		}
	}
	if t.Address == nil {
		return nil, fault.Unavailable.Errorf("shim %s of container %s was never started", t.Path, t.id)
	}
	client, err := shim.Dial(ctx, *t.Address)
	if err == nil {
		l.client = client
	}
	return client, err
}

// mutePause is for how long a shim that has not answered is not asked again, except for what ends a
// container: each call would take its whole time, and keep the executor from being upgraded.
const mutePause = 10 * time.Second

// ask calls the shim, unless it has just not answered.
func (t *Task) ask(ctx context.Context, bound time.Duration, call func(context.Context, *shim.Client) error) error {
	if last := t.link().mute.Load(); last != 0 && time.Since(time.Unix(0, last)) < mutePause {
		return fault.Unavailable.Errorf("shim %s does not answer", t.Path)
	}
	return t.askAnyway(ctx, bound, call)
}

// askAnyway calls the shim. A lost connection, which is not the end of the shim, is made again.
func (t *Task) askAnyway(parent context.Context, bound time.Duration, call func(context.Context, *shim.Client) error) (err error) {
	l := t.link()
	defer func() {
		switch {
		case err == nil:
			l.mute.Store(0)
		case errors.Is(err, context.DeadlineExceeded) && parent.Err() == nil:
			l.mute.Store(time.Now().UnixNano())
		}
	}()
	ctx, cancel := context.WithTimeout(parent, bound)
	defer cancel()
	for range 2 {
		var client *shim.Client
		if client, err = t.client(ctx); err != nil {
			return err
		}
		if err = call(ctx, client); !errors.Is(err, shim.ErrLost) {
			return err
		}
	}
	return err
}

// reported is an error of a shim as our clients get it. The error of a lost executor is
// fault.Unavailable, after which they would repeat the call, and fault.NotFound is that of a
// container unknown to us.
func reported(err error) error {
	if err == nil {
		return nil
	}
	switch kind := fault.KindOf(err); kind {
	case fault.Invalid, fault.WrongState:
		return kind.Errorf("%v", err)
	}
	return fault.Internal.Errorf("%v", err)
}

// Facts implements Runtime.
func (t *Task) Facts() (ownPID bool, groups map[string]string, err error) {
	return t.OwnPID, maps.Clone(t.Cgroups), nil
}

// MemoryGroup returns the cgroups in which the OOM killer ends the container.
func (t *Task) MemoryGroup() map[string]string {
	if len(t.Cgroups) > 0 {
		return t.Cgroups
	}
	return t.Above
}

// Subgroups implements Runtime: a shim decides itself where an exec runs.
func (t *Task) Subgroups() bool { return false }

// Update implements Runtime. An oom_score_adj is not in the Task API.
func (t *Task) Update(r *specs.LinuxResources, _ *int) error {
	full := *r // gVisor's shim fails without these
	if full.CPU == nil {
		full.CPU = &specs.LinuxCPU{}
	}
	if full.Memory == nil {
		full.Memory = &specs.LinuxMemory{}
	}
	data, err := json.Marshal(&full)
	if err != nil {
		return err
	}
	return reported(t.ask(context.Background(), shimCall, func(ctx context.Context, c *shim.Client) error {
		return c.Update(ctx, t.id, shim.Resources(data), nil)
	}))
}

// Stats returns the counters of the container in the shim's words.
func (t *Task) Stats(ctx context.Context) (reply wire.StatsReply, err error) {
	err = t.ask(ctx, shimStats, func(ctx context.Context, c *shim.Client) error {
		counters := c.Stats
		if t.isSandbox() {
			counters = c.SandboxMetrics
		}
		any, err := counters(ctx, t.id)
		if err == nil && any == nil {
			err = fault.WrongState.Errorf("shim %s has no counters of container %s", t.Path, t.id)
		}
		if err != nil {
			return err
		}
		reply = wire.StatsReply{Type: any.TypeURL, Data: any.Value}
		if !t.isSandbox() && any.Processes() == 0 {
			n, _ := c.Pids(ctx, t.id) // it may not have the call
			reply.Processes = uint64(n)
		}
		return nil
	})
	return reply, reported(err)
}

// Resize sets the size of the terminal.
func (t *Task) Resize(width, height uint16) error {
	if !t.TTY {
		return fault.Invalid.Errorf("container %s has no terminal", t.id)
	}
	return reported(t.ask(context.Background(), shimCall, func(ctx context.Context, c *shim.Client) error {
		return c.ResizePty(ctx, t.id, "", width, height)
	}))
}

// CloseStdin closes the container's stdin once it has read what is in the FIFO.
func (t *Task) CloseStdin() {
	t.note(func() { t.Closed = true }) // first: the next executor closes it again
	t.closeStdin()
}

func (t *Task) closeStdin() {
	err := t.ask(context.Background(), shimCall, func(ctx context.Context, c *shim.Client) error {
		return c.CloseIO(ctx, t.id, "")
	})
	if err != nil && !t.process.Ending() {
		t.all.log.Warn("stdin of a container could not be closed", "container", t.id, "err", err)
	}
}

// Reopen opens our ends of the stdio again, as far as the executor before has not left them: what was
// not read is still there.
func (t *Task) Reopen(have [4]*os.File) (ends [4]*os.File, err error) {
	fifos := t.fifos()
	if t.Closed || have[0] != nil {
		fifos.Stdin = ""
	}
	if have[1] != nil {
		fifos.Stdout = ""
	}
	if have[2] != nil {
		fifos.Stderr = ""
	}
	opened, err := fifos.Open()
	if err != nil {
		return have, err
	}
	for i, f := range opened.Ours {
		if f != nil {
			have[i] = f
		}
	}
	return have, nil
}

func (t *Task) fifos() stdio.FIFOs { return stdio.FIFOsIn(t.dir, t.Stdin, t.TTY) }

// settle learns in which cgroups the process is: gVisor's sandbox is in one for the whole pod, the
// pod's or, on cgroup v2, the sandbox's own; a VM's processes are in none. A process that has ended
// counts as having been in its own.
func (t *Task) settle(pid int) {
	_, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
	own, above := make(map[string]string), make(map[string]string)
	var first map[string]string // of the container that has the shim
	if c := t.all.find(t.Sandbox); c != nil {
		first = c.Group
	}
	for controller, dir := range t.Group {
		if pids, perr := cgroups.GetPids(dir); perr == nil && (slices.Contains(pids, pid) || err != nil) {
			own[controller] = dir
			continue
		}
		if controller != "memory" && controller != "" {
			continue
		}
		if pids, err := cgroups.GetPids(first[controller]); err == nil && slices.Contains(pids, pid) {
			above[controller] = first[controller]
			continue
		}
		for up := filepath.Dir(dir); !isMount(up) && up != "/"; up = filepath.Dir(up) {
			if pids, err := cgroups.GetPids(up); err == nil && slices.Contains(pids, pid) {
				above[controller] = up
				break
			}
		}
	}
	t.note(func() { t.Cgroups, t.Above = own, above })
}

// isMount reports whether dir is the root of a hierarchy: only there are these files, or are not.
func isMount(dir string) bool {
	if _, err := os.Stat(filepath.Join(dir, "release_agent")); err == nil {
		return true
	}
	_, procs := os.Stat(filepath.Join(dir, "cgroup.procs"))
	_, parent := os.Stat(filepath.Join(dir, "notify_on_release"))
	_, kind := os.Stat(filepath.Join(dir, "cgroup.type"))
	return procs != nil || parent != nil && kind != nil
}
