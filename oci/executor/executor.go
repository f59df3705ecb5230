// Package executor is the parent of every container of a node: it runs them with libcontainer,
// owns their stdio, logs and terminals, watches them for OOM kills and records how they ended.
// crispd controls it over oci/wire and may come and go; the executor knows nothing of CRI,
// images or networks.
//
// libcontainer executes /proc/self/exe once for each container and each exec, so this program
// stays small, initializes little, and runs from a sealed memfd (seal.Copy), which spares
// libcontainer a copy of the binary each time.
//
// # One container
//
//	run ──▶ starting ──▶ running ──────────────▶ ended ──▶ deleting ──▶ gone
//	            │          │ pidfd readable        ▲ exit.json written,
//	            ▼ failed   └─ get the exit code, ──┘ init reaped,
//	           gone           kill the rest,         then reported
//	                          drain stdio
//
// Each has one goroutine that waits for its pidfd and one for each output stream; all sleep in
// the poller, none holds a thread or a buffer while nothing happens.
//
// # Rooms
//
// This package has the table of containers, execs, upgrades and the calls. What it is made of knows
// neither, and is in packages below it:
//
//	runtime  starts containers and execs: the fast init, libcontainer, an OCI runtime or a shim
//	limits   what a cgroup may use, OOM kills, scores
//	shim     the programs that run sandboxes, and their protocol
//	proc     finds, signals, waits for and ends processes
//	stdio    pipes, terminals, logs, attached clients
//	gate     what an upgrade waits for; work that panics
//	poll     files in Go's poller
//	seal     the program's own copy
//
// # Locks
//
// table.mu guards the containers and their phases, execs.mu the execs; neither is ever held over
// a system call that can block. libcontainer holds its own mutex throughout an exec, so each
// exec borrows a libcontainer.Container of its own (borrow of package runtime). So a process in
// uninterruptible sleep blocks only the callers that want it to end.
//
// # OCI runtimes
//
// A container may use an OCI runtime, a program on disk, in place of libcontainer
// (runtime/engine.go). Each call of the program ends; the executor is still the container's parent,
// and after the start the code is the same. runtime.Runtime has the differences.
//
// # Shims
//
// A container may belong to a containerd shim (runtime/shim.go, package shim): a daemon that has the
// container's processes, or another kernel that has them. The shim is asked to start it, to signal it
// and how it ended; its stdio comes by FIFOs, and is ours from there on. The shim goes on without an
// executor: the next one asks it again.
//
// # Crash and upgrade
//
// When the executor dies, its containers keep running: crispd has duplicates of their pipes and
// pidfds and gives them to a new executor (adopt). That one finds output that was read from a
// container but not logged yet in a file (stdio/buffer.go). On an upgrade the executor executes the
// new program in its own place (upgrade.go); the gate brings every goroutine to a point where all
// its state is in the tables.
package executor

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/flock"
	"github.com/crisp-cri/crisp/internal/unixsock"
	"github.com/crisp-cri/crisp/oci/executor/gate"
	"github.com/crisp-cri/crisp/oci/executor/limits"
	"github.com/crisp-cri/crisp/oci/executor/proc"
	"github.com/crisp-cri/crisp/oci/executor/runtime"
	"github.com/crisp-cri/crisp/oci/executor/stdio"
	"github.com/crisp-cri/crisp/oci/wire"
)

// Options are the arguments of New.
type Options struct {
	Socket  string // where it listens; mode 0600
	State   string // crisp's state directory; libcontainer's is <State>/executor
	Version string // as in HelloReply
	Log     *slog.Logger

	// Lock is the lock of State's executor, if our parent holds it for us; nil means that New
	// takes it.
	Lock *os.File
}

// processorsEnv sets how many threads of a Go program run at once.
const processorsEnv = "GOMAXPROCS"

// An Executor runs containers.
type Executor struct {
	opts        Options
	log         *slog.Logger
	files       ownFiles
	limits      limits.Bounds
	oom         *limits.OOMWatch
	warmer      *limits.Warmer
	gate        gate.Gate
	buffers     *stdio.Buffers
	reaper      *proc.Reaper
	table       *table
	execs       *execs
	root        string // libcontainer's state directory
	runtimes    *runtime.Runtimes
	subscribers subscribers
	moving      chan struct{} // of capacity 1; full while a container with network devices starts, see dropMovedDevices
}

// New creates the executor of a state directory and listens. The error is fault.Exists if the
// directory already has one.
func New(o Options) (*Executor, error) {
	files, err := makeDirs(o.State)
	if err != nil {
		return nil, err
	}
	// A lock that was passed to us is already held: it belongs to the open file.
	if files.lock = o.Lock; files.lock == nil {
		files.lock, err = flock.Take(filepath.Join(o.State, lockName))
	}
	switch {
	case errors.Is(err, flock.ErrHeld):
		return nil, fault.Exists.Errorf("another executor runs for %s: %w", o.State, err)
	case err != nil:
		return nil, err
	}
	// No other process can listen there, because we hold the lock.
	if files.listener, err = unixsock.Bind(o.Socket, socketFiles); err != nil {
		files.lock.Close()
		return nil, err
	}
	x, err := assemble(o, files)
	if err != nil {
		return nil, err
	}
	if pids, err := proc.Strays(x.root).Kill(); len(pids) > 0 { // we have none yet
		x.log.Info("processes that a killed executor was starting were killed", "pids", pids, "err", err)
	}
	return x, nil
}

func assemble(o Options, files ownFiles) (*Executor, error) {
	// For libcontainer's children: they need one thread, and start faster with it. Go has
	// already read our own value.
	os.Setenv(processorsEnv, "1")
	x := &Executor{
		opts:   o,
		log:    o.Log,
		files:  files,
		warmer: limits.NewWarmer(),
		root:   filepath.Join(o.State, "executor"),
		table:  newTable(),
		moving: make(chan struct{}, 1),
	}
	x.reaper = proc.NewReaper(&x.gate)
	x.execs = newExecs(o.Log, &x.gate, x.reaper)
	x.limits = limits.ReadBounds(o.Log)
	var err error
	if x.runtimes, err = runtime.NewRuntimes(x.root, o.State, o.Log, x.reaper, x.oomHappened); err != nil {
		return nil, err
	}
	if x.buffers, err = stdio.OpenBuffers(o.State, o.Log); err != nil {
		o.Log.Warn("output in hand would be lost with the executor", "err", err)
	}
	if x.oom, err = limits.NewOOMWatch(x.log, x.oomHappened); err != nil {
		return nil, err
	}
	return x, nil
}

// Serve answers calls until Close, CloseIdle or a "shutdown". It must be called on the main
// goroutine, locked to the main thread since before anything was forked, so that the children of
// that thread are orphans (proc/reaper.go).
func (x *Executor) Serve() {
	go x.reaper.Loop(x.table.quit)
	go x.watchFiles()
	wire.Serve(x.files.listener, x, x.log)
}

// A phase is the state of a container, see the package comment.
type phase uint8

const (
	starting phase = iota
	running
	ended
	deleting
)

// A container is one container. Fields that are not guarded are set before the phase becomes
// running and do not change.
type container struct {
	settings
	ref wire.RunReply // Cgroups has all hierarchies, see cgroupPaths

	phase phase      // guarded by table.mu
	exit  *wire.Exit // set when the init has ended, final once the phase is ended; guarded by table.mu

	ownPID  bool // it has its own PID namespace: all its processes end with its init
	proc    *proc.Process
	rest    proc.Target   // what is to end with the init
	task    *runtime.Task // runtime, if a shim runs it; else nil
	io      *stdio.Streams
	oom     *limits.OOMCounter // nil if there is no memory controller
	sent    atomic.Uint64      // a bit for each signal that clients of this executor have sent it
	runtime runtime.Runtime

	updating sync.Mutex // one update at a time
	dumping  sync.Mutex // held while CRIU works on it, and to thaw it
	freezing sync.Mutex // held to freeze and to thaw it; taken after dumping
	frozen   *freezeOp  // the freeze that keeps it frozen; guarded by table.mu
	dumped   bool       // CRIU works on it, or is about to; guarded by table.mu
	entering int        // execs that are being started, see enter; guarded by table.mu

	gone chan struct{} // closed when phase becomes ended

	giveUp context.CancelCauseFunc // cancels its start; nil if it was adopted
	from   *wire.Conn              // requested its start; nil likewise
	toKill bool                    // giveUp was called by a kill; guarded by table.mu
	stuck  bool                    // its start cannot be ended; guarded by table.mu
}

// settings are what must be known of a container after its start.
type settings struct {
	wire.Settings
	Silent bool // all of its stdio is /dev/null: a pod's init
}

// setRunning moves a container to running and starts to watch it.
func (x *Executor) setRunning(c *container) {
	if !c.proc.Foreign() {
		x.reaper.Know(c.proc.PID)
	}
	c.rest = proc.Rest(c.proc.PID, c.ref.Cgroups)
	if killed := x.table.begin(c); killed { // too late for its start
		_ = c.proc.Signal(unix.SIGKILL)
	}
	c.io.Start(&x.gate, x.buffers, x.log)
	if c.oom != nil {
		if err := x.oom.Add(c.ID, c.oom); err != nil {
			x.log.Warn("memory events cannot be watched", "container", c.ID, "err", err)
		}
	}
	go x.attend(c)
}

// reply returns c's part of a reply to clients.
func (c *container) reply() wire.RunReply {
	r := c.ref
	r.Cgroups = maps.Clone(r.Cgroups)
	return r
}

// exitOf returns the Exit of a container from what is known about its end.
func exitOf(id string, code int32, oom bool, at time.Time) *wire.Exit {
	return &wire.Exit{ID: id, Code: code, At: at, OOMKilled: oom, Reason: wire.ReasonOf(code, oom)}
}

// lockName is the lock of a state directory's executor.
const lockName = "executor.lock"

// socketFiles are the modes for the socket and its directory. Others may pass through the state
// directory, as crispd creates it.
var socketFiles = unixsock.Options{Mode: 0o600, Dir: 0o711}

// ownFiles are what the executor restores when it has been removed. Without its socket no crispd
// would reach it, without its lock a second executor could be started for the same containers.
// lock and listener are replaced inside the gate.
type ownFiles struct {
	state, own *unixsock.Dir // the state directory, and libcontainer's in it
	lock       *os.File
	listener   *unixsock.Listener
}

func makeDirs(state string) (k ownFiles, err error) {
	if k.state, err = unixsock.MakeDir(state, 0o711); err == nil {
		k.own, err = unixsock.MakeDir(filepath.Join(state, "executor"), 0o700)
	}
	return k, err
}

// watchFiles checks the files until the executor is about to end.
func (x *Executor) watchFiles() {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-x.table.quit
		cancel()
	}()
	unixsock.Watch(ctx, x.log, x.lookAtFiles)
}

// lookAtFiles restores missing files. If another process has the lock, as a crispd has for a
// moment before it starts an executor, the socket may be about to become another's.
func (x *Executor) lookAtFiles() (again []string, err error) {
	x.gate.Enter() // an upgrade hands over the current lock and socket
	defer x.gate.Leave()
	for _, dir := range []*unixsock.Dir{x.files.state, x.files.own} {
		if _, err := dir.Look(); err != nil {
			return nil, err
		}
	}
	path := filepath.Join(x.opts.State, lockName)
	lock, err := flock.Renew(x.files.lock, path)
	if err != nil {
		return nil, err
	}
	if lock != x.files.lock {
		x.files.lock.Close()
		x.files.lock = lock
		again = append(again, path)
	}
	buffers, err := x.buffers.Look()
	sockets, serr := unixsock.LookAll(append(x.runtimes.Listeners(), x.files.listener)...)
	return slices.Concat(again, buffers, sockets), errors.Join(err, serr)
}

// The end of the executor is decided under table.mu, which also guards every container's place in
// the table (reserve): an accepted container keeps the executor running, and after the decision
// none is accepted. Clients see their connections end (wire.Serve) and connect to the next
// executor, which cannot begin before this process has exited: it holds the lock.

// errExiting is the error of calls that come after the decision. Its kind is that of a lost
// connection: in both cases nothing was done.
var errExiting = fault.Unavailable.Errorf("executor is about to end")

// Close ends the executor if it has no containers; otherwise the error is fault.WrongState,
// as they would lose their stdio and their exit codes.
func (x *Executor) Close() error {
	return x.exitIf(func(containers map[string]*container) error {
		if n := len(containers); n > 0 {
			return fault.WrongState.Errorf("executor has %d containers", n)
		}
		return nil
	})
}

// CloseIdle is Close for a shutdown of the machine: only live containers prevent it, and execs
// whose code was not reported. The exits of other containers are on disk.
func (x *Executor) CloseIdle() error {
	execs := x.execs.count()
	return x.exitIf(func(containers map[string]*container) error {
		for id, c := range containers {
			if c.phase == starting || c.phase == running {
				return fault.WrongState.Errorf("container %s is alive", id)
			}
		}
		if execs > 0 { // they end with their container, or their client
			return fault.WrongState.Errorf("executor has %d execs", execs)
		}
		return nil
	})
}

// exitIf makes Serve return if may, called with table.mu held, returns nil.
func (x *Executor) exitIf(may func(map[string]*container) error) (err error) {
	x.table.edit(func() {
		if err = may(x.table.containers); err == nil && !x.table.exiting() {
			close(x.table.quit)
		}
	})
	if err == nil {
		x.files.listener.Close() // removes the socket
		x.runtimes.Close()
	}
	return err
}

// exiting reports whether the executor is about to exit. With mu held that cannot change.
func (t *table) exiting() bool {
	select {
	case <-t.quit:
		return true
	default:
		return false
	}
}
