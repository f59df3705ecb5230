package executor

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/crilog"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/unixsock"
	"github.com/crisp-cri/crisp/oci/wire"
)

// An upgrade replaces the program and keeps the process, with its children and its open
// descriptors. The tables are passed as JSON in a memfd, whose number is in the environment.

// resumeEnv is the variable with the number of the memfd.
const resumeEnv = "_CRISP_EXECUTOR_RESUME"

const (
	// quiet bounds how long an upgrade waits for operations that may take long, shutFor how long
	// for the rest, while the output of all containers waits for us.
	quiet   = 10 * time.Second
	shutFor = 3 * time.Second
)

// savedVersion is the version of a saved, and the newest that this program can resume; raise it
// when an older program would misread or lose something. A state without a version is version 1.
const savedVersion = 1

// A saved is the whole state of an executor. Numbers are descriptors; -1 = none.
type saved struct {
	Version        int
	Listener, Lock int
	Session        string
	LastExec       uint64
	Containers     []savedContainer
	Execs          []savedExec
}

type savedContainer struct {
	settings
	Ref                             wire.RunReply
	Ended                           bool
	Exit                            *wire.Exit
	OwnPID, Ours                    bool
	Pidfd                           int
	Stdin, Stdout, Stderr, PTY, Log int
	Attached                        []savedAttachment
	Typing                          []savedAttachment `json:",omitempty"` // typing clients that no longer watch
	Frozen                          bool              `json:",omitempty"`
	Types                           bool              `json:",omitempty"` // settings.Stdin; a descriptor already has that name
}

type savedAttachment struct {
	Outs   map[string]int
	Stdin  int
	Typed  []byte
	Client int               `json:",omitempty"`
	Waits  bool              `json:",omitempty"`
	Owed   map[string][]byte `json:",omitempty"`
}

type savedExec struct {
	ID, Container string
	Pid, Pidfd    int
	Group         map[string]string
	Ended         bool
	Code          int32
}

// upgrade serves MethodUpgrade. If the program cannot be executed, this one continues.
func (x *Executor) upgrade(req wire.UpgradeRequest, call *wire.Call) error {
	program, err := Seal(req.Path)
	if err != nil {
		return fault.Invalid.Errorf("upgrade: %w", err)
	}
	if !isELF(program) {
		program.Close()
		return fault.Invalid.Errorf("upgrade: %s is not a program", req.Path)
	}
	if !x.gate.close(quiet, shutFor) && !(x.table.endLeft() && x.gate.close(2*endPatience, shutFor)) {
		program.Close()
		return fault.Unavailable.Errorf("upgrade: a start or an exit takes too long, try again")
	}
	defer func() { // in any case: while the gate is shut, all containers stand still
		if call.Then == nil {
			program.Close()
			x.gate.open()
		}
	}()
	state, err := x.save(program)
	if err != nil {
		return err
	}
	call.Then = func() {
		env := append(withoutVars(os.Environ(), resumeEnv, processorsEnv), resumeEnv+"="+strconv.Itoa(int(state.Fd())))
		if err := x.become(program, env); err != nil {
			x.log.Error("executor was not upgraded", "err", err)
		}
		x.inherit(false)
		program.Close()
		state.Close()
		x.gate.open()
	}
	return nil
}

// become executes program in place of this one, unless we are about to exit.
func (x *Executor) become(program *os.File, env []string) error {
	// Later requests are for the new program.
	return x.table.unlessLeft(func() error { return Execute(program, os.Args, env) })
}

func isELF(f *os.File) bool {
	magic := make([]byte, 4)
	_, err := f.ReadAt(magic, 0)
	return err == nil && string(magic) == "\x7fELF"
}

// withoutVars returns env without the named variables.
func withoutVars(env []string, names ...string) []string {
	return slices.DeleteFunc(env, func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains(names, name)
	})
}

// save writes the tables to a memfd and makes all descriptors in them inheritable, if program
// understands the tables. The gate is shut, so that no container can start meanwhile; one that
// is starting has nothing yet that could be handed over.
func (x *Executor) save(program *os.File) (*os.File, error) {
	if id, found := x.table.startingOne(); found {
		return nil, fault.Unavailable.Errorf("upgrade: container %s is starting, try again", id)
	}
	data, err := json.Marshal(x.inherit(false))
	if err != nil {
		return nil, err
	}
	if err := x.understands(program, data); err != nil {
		return nil, err
	}
	if data, err = json.Marshal(x.inherit(true)); err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("crisp-executor-state", 0)
	if err != nil {
		x.inherit(false)
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "state")
	if _, err := f.Write(data); err != nil {
		f.Close()
		x.inherit(false)
		return nil, err
	}
	return f, nil
}

// inherit sets or clears, on every descriptor in the tables, whether it survives execve, and
// returns the tables with the descriptors' numbers.
func (x *Executor) inherit(on bool) *saved {
	flag := unix.FD_CLOEXEC
	if on {
		flag = 0
	}
	fd := func(f *os.File) int {
		n := -1
		if f != nil {
			withFD(f, func(fd int) error {
				n = fd
				_, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, flag)
				return err
			})
		}
		return n
	}
	s := &saved{Version: savedVersion, Listener: -1, Lock: fd(x.kept.lock)}
	if raw, err := x.kept.listener.SyscallConn(); err == nil {
		raw.Control(func(n uintptr) {
			s.Listener = int(n)
			unix.FcntlInt(n, unix.F_SETFD, flag)
		})
	}
	x.execs.save(s, fd)
	x.table.save(s, fd)
	return s
}

// save adds the containers to s.
func (t *table) save(s *saved, fd func(*os.File) int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.containers {
		if !c.stuck { // delete will find the leftovers of a stuck one
			s.Containers = append(s.Containers, c.save(fd))
		}
	}
}

// save adds the execs to s.
func (t *execs) save(s *saved, fd func(*os.File) int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.Session, s.LastExec = t.session, t.last
	for _, e := range t.all {
		s.Execs = append(s.Execs, e.save(fd))
	}
}

func (c *container) save(fd func(*os.File) int) savedContainer {
	s := savedContainer{
		settings: c.settings, Ref: c.ref, Ended: c.phase >= ended, Exit: c.exit,
		OwnPID: c.ownPID, Frozen: c.frozen != nil, Types: c.settings.Stdin, Ours: c.proc.ours, Pidfd: -1,
		Stdin: -1, Stdout: -1, Stderr: -1, PTY: -1, Log: -1,
	}
	if s.Ended {
		return s // its descriptors are closed
	}
	s.Pidfd = fd(c.proc.pidfd)
	s.PTY = fd(c.io.pty())
	if s.PTY < 0 {
		s.Stdin = fd(c.io.stdin)
	}
	for _, o := range c.io.outs {
		switch {
		case o.tty:
		case o.stream == crilog.Stdout:
			s.Stdout = fd(o.file)
		default:
			s.Stderr = fd(o.file)
		}
	}
	if c.io.log != nil {
		s.Log = fd(c.io.log.File())
	}
	c.io.mu.Lock()
	defer c.io.mu.Unlock()
	for _, a := range c.io.attached {
		sa := a.save(fd)
		for stream, f := range a.outs {
			sa.Outs[stream], sa.Owed[stream] = fd(f), *a.backlog[stream]
		}
		s.Attached = append(s.Attached, sa)
	}
	for _, a := range c.io.typing {
		if !slices.Contains(c.io.attached, a) {
			s.Typing = append(s.Typing, a.save(fd))
		}
	}
	return s
}

// save returns the input side of a; the caller adds its outputs.
func (a *attachment) save(fd func(*os.File) int) savedAttachment {
	return savedAttachment{Outs: make(map[string]int), Stdin: fd(a.stdin), Typed: a.typed,
		Client: a.client, Waits: a.waits, Owed: make(map[string][]byte)}
}

func (e *execution) save(fd func(*os.File) int) savedExec {
	s := savedExec{ID: e.id, Container: e.c.ID, Pid: e.proc.pid, Pidfd: -1, Group: e.group}
	select {
	case <-e.ended: // its descriptor may be closed any moment, and the number be reused
		s.Ended, s.Code = true, e.code
	default:
		s.Pidfd = fd(e.proc.pidfd)
	}
	return s
}

// Resuming reports whether this process continues the work of an executor that executed it.
func Resuming() bool { return os.Getenv(resumeEnv) != "" }

// Resume is New in a process that is Resuming. If a newer executor saved the state, the error is
// fault.WrongState, before anything is taken over: the containers then run without an executor
// until crispd hands them to one, as after a crash.
func Resume(o Options) (*Executor, error) {
	n, err := strconv.Atoi(os.Getenv(resumeEnv))
	os.Unsetenv(resumeEnv)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", resumeEnv, err)
	}
	f := os.NewFile(uintptr(n), "state")
	defer f.Close()
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	s, err := readSaved(f)
	if err != nil {
		return nil, err
	}
	lf := take(s.Listener, "listener")
	l, err := net.FileListener(lf)
	if err != nil {
		return nil, err
	}
	lf.Close()
	kept, err := makeDirs(o.State)
	if err != nil {
		return nil, err
	}
	kept.lock = take(s.Lock, "lock")
	kept.listener = unixsock.Resume(l.(*net.UnixListener), o.Socket, socketFiles)
	x, err := assemble(o, kept)
	if err != nil {
		return nil, err
	}
	x.execs.session, x.execs.last = s.Session, s.LastExec
	for _, sc := range s.Containers {
		x.resume(sc)
	}
	for _, se := range s.Execs {
		if c := x.table.get(se.Container); c != nil {
			x.execs.resume(se, c)
		}
	}
	for _, sc := range s.Containers {
		if c := x.table.get(sc.ID); c != nil && !sc.Ended {
			x.execs.removeSpentGroups(c)
			x.thawSaved(c, sc)
		}
	}
	return x, nil
}

// take makes a file of an inherited descriptor; nil for -1.
func take(fd int, name string) *os.File {
	if fd < 0 {
		return nil
	}
	unix.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), name) // puts non-blocking descriptors into the poller
}

func (x *Executor) resume(s savedContainer) {
	c := &container{
		settings: s.settings, ref: s.Ref, exit: s.Exit, ownPID: s.OwnPID, gone: make(chan struct{}),
		proc: &child{pid: s.Ref.Pid, pidfd: take(s.Pidfd, wire.FDPid), ours: s.Ours},
	}
	c.Stdin = s.Types || s.Stdin >= 0 // older releases did not save it for a terminal
	c.runtime = x.runtimeOf(c.ID)
	x.table.add(c)
	if s.Ended {
		c.phase = ended
		close(c.gone)
		return
	}
	var log *crilog.Writer
	if s.Log >= 0 {
		log = crilog.Resume(take(s.Log, c.LogPath), c.LogPath, c.LogMaxLine, logTrouble(c.ID, x.log))
	}
	c.io = newStdio(s.settings, log, take(s.Stdin, wire.FDStdin), take(s.Stdout, wire.FDStdout),
		take(s.Stderr, wire.FDStderr), take(s.PTY, wire.FDPTY))
	for _, sa := range append(s.Attached, s.Typing...) {
		a := attaches(sa.Client, sa.Waits)
		a.stdin, a.typed = take(sa.Stdin, wire.FDStdin), sa.Typed
		for stream, n := range sa.Outs {
			a.add(stream, take(n, stream), sa.Owed[stream])
		}
		c.io.attach(a, &x.gate, x.log)
	}
	if x.countOOM(c); c.oom != nil {
		c.oom.reported.Store(c.oom.count()) // before the upgrade
	}
	x.setRunning(c)
}

// thawSaved thaws c if it was frozen before the upgrade: a freeze lasts as long as the
// connection that requested it, and all connections have ended.
func (x *Executor) thawSaved(c *container, s savedContainer) {
	if !s.Frozen {
		return
	}
	if err := thawWhole(c.ref.Cgroups); err != nil {
		x.log.Error("container could not be thawed after an upgrade", "container", c.ID, "err", err)
	}
}

// unclaimed is how long an exec waits for an exec.wait after an upgrade.
const unclaimed = 30 * time.Second

// resume continues a saved exec.
func (t *execs) resume(s savedExec, c *container) {
	e := &execution{id: s.ID, c: c, group: s.Group, ended: make(chan struct{}), gone: make(chan struct{}),
		proc: &child{pid: s.Pid, pidfd: take(s.Pidfd, wire.FDPid), ours: true}}
	if s.Ended {
		e.code = s.Code
		close(e.ended)
		t.mu.Lock()
		t.all[e.id] = e
		t.mu.Unlock()
	} else {
		t.register(e)
	}
	time.AfterFunc(unclaimed, func() { t.abandonIf(e, func() bool { return e.owner == nil }) })
}
