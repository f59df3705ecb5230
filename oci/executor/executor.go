// Package executor is the parent of every container of a node: it runs them with libcontainer,
// owns their stdio, logs and terminals, watches them for OOM kills and records how they ended.
// crispd controls it over oci/wire and may come and go; the executor knows nothing of CRI,
// images or networks.
//
// libcontainer executes /proc/self/exe once for each container and each exec, so this program
// stays small, initializes little, and runs from a sealed memfd (Seal), which spares
// libcontainer a copy of the binary each time.
//
// # One container
//
//	run ──▶ starting ──▶ running ──────────────▶ ended ──▶ deleting ──▶ gone
//	            │          │ pidfd readable        ▲ exit.json synced,
//	            ▼ failed   └─ get the exit code, ──┘ init reaped,
//	           gone           kill the rest,         then reported
//	                          drain stdio
//
// Each has one goroutine that waits for its pidfd and one for each output stream; all sleep in
// the poller, none holds a thread or a buffer while nothing happens.
//
// # Locks
//
// table.mu guards the containers and their phases, execs.mu the execs; neither is ever held over
// a system call that can block. libcontainer holds its own mutex throughout an exec, so each
// exec borrows a libcontainer.Container of its own (handle_pool.go). So a process in
// uninterruptible sleep blocks only the callers that want it to end.
//
// # OCI runtimes
//
// A container may use an OCI runtime, a program on disk, in place of libcontainer (engine.go).
// Each call of the program ends; the executor is still the container's parent, and after the
// start the code is the same. ociRuntime has the differences.
//
// # Crash and upgrade
//
// When the executor dies, its containers keep running: crispd has duplicates of their pipes and
// pidfds and gives them to a new executor (adopt.go). That one finds output that was read from a
// container but not logged yet in a file (inhand.go). On an upgrade the executor executes the
// new program in its own place (upgrade.go); gate.go brings every goroutine to a point where all
// its state is in the tables.
package executor

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/flock"
	"github.com/crisp-cri/crisp/internal/unixsock"
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
	kept        kept
	limits      limits
	oom         *oomWatch
	warmer      *warmer
	gate        gate
	hands       *hands
	reaper      *reaper
	table       *table
	execs       *execs
	builtins    *builtins
	engines     *engines
	subscribers subscribers
	criu        *criu
	moving      chan struct{} // of capacity 1; full while a container with network devices starts, see leaveMoved
}

// New creates the executor of a state directory and listens. The error is fault.Exists if the
// directory already has one.
func New(o Options) (*Executor, error) {
	kept, err := makeDirs(o.State)
	if err != nil {
		return nil, err
	}
	// A lock that was passed to us is already held: it belongs to the open file.
	if kept.lock = o.Lock; kept.lock == nil {
		kept.lock, err = flock.Take(filepath.Join(o.State, lockName))
	}
	switch {
	case errors.Is(err, flock.ErrHeld):
		return nil, fault.Exists.Errorf("another executor runs for %s: %w", o.State, err)
	case err != nil:
		return nil, err
	}
	// Nobody else can listen there, because we hold the lock.
	if kept.listener, err = unixsock.Bind(o.Socket, socketFiles); err != nil {
		kept.lock.Close()
		return nil, err
	}
	x, err := assemble(o, kept)
	if err != nil {
		return nil, err
	}
	endStrays(x.builtins.root, x.log)
	return x, nil
}

func assemble(o Options, kept kept) (*Executor, error) {
	// For libcontainer's children: they need one thread, and start faster with it. Go has
	// already read our own value.
	os.Setenv(processorsEnv, "1")
	x := &Executor{
		opts:   o,
		log:    o.Log,
		kept:   kept,
		warmer: newWarmer(),
		criu:   &criu{log: o.Log, config: filepath.Join(o.State, "criu.conf")},
		table:  newTable(),
		moving: make(chan struct{}, 1),
	}
	x.reaper = newReaper(&x.gate)
	x.execs = newExecs(o.Log, &x.gate, x.reaper)
	x.limits = readLimits(o.Log)
	var err error
	root := filepath.Join(o.State, "executor")
	x.engines = &engines{root: root, state: o.State, log: o.Log, reaper: x.reaper}
	if x.builtins, err = newBuiltins(root, o, x.reaper, x.criu); err != nil {
		return nil, err
	}
	if x.hands, err = openHands(o.State, o.Log); err != nil {
		o.Log.Warn("output in hand would be lost with the executor", "err", err)
	}
	if x.oom, err = newOOMWatch(x.log, x.oomHappened); err != nil {
		return nil, err
	}
	return x, nil
}

// Serve answers calls until Close, CloseIdle or a "shutdown". It must be called on the main
// goroutine, locked to the main thread since before anything was forked, so that the children of
// that thread are orphans (orphan.go).
func (x *Executor) Serve() {
	go x.reaper.loop(x.table.quit)
	go x.criu.look()
	go x.watchFiles()
	wire.Serve(x.kept.listener, x, x.log)
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
	proc    *child
	io      *stdio
	oom     *oomCounter // nil if there is no memory controller
	runtime ociRuntime

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
	x.reaper.know(c.proc.pid)
	if killed := x.table.begin(c); killed { // too late for its start
		_ = c.proc.signal(unix.SIGKILL)
	}
	c.io.start(&x.gate, x.hands, x.log)
	if c.oom != nil {
		if err := x.oom.add(c.ID, c.oom); err != nil {
			x.log.Warn("memory events cannot be watched", "container", c.ID, "err", err)
		}
	}
	go insist(x.log, "exit", c.ID, func() { x.watch(c) })
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
