package executor

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/unixsock"
	"github.com/crisp-cri/crisp/oci/executor/poll"
	"github.com/crisp-cri/crisp/oci/executor/proc"
	"github.com/crisp-cri/crisp/oci/executor/runtime"
	"github.com/crisp-cri/crisp/oci/executor/seal"
	"github.com/crisp-cri/crisp/oci/executor/stdio"
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
const savedVersion = 3

// withoutShims is the version of the state of an executor that has no container of a shim, and
// withoutSandboxes of one that has no sandbox by the Sandbox API: older programs can resume them.
const (
	withoutShims     = 1
	withoutSandboxes = 2
)

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
	Ref          wire.RunReply
	Ended        bool
	Exit         *wire.Exit
	OwnPID, Ours bool
	Pidfd        int
	stdio.Saved
	Frozen bool `json:",omitempty"`
	Types  bool `json:",omitempty"` // settings.Stdin; a descriptor already has that name
}

type savedExec struct {
	ID, Container string
	Pid, Pidfd    int
	Group         map[string]string
	Ended         bool
	Code          int32
	Task          bool         `json:",omitempty"` // in a shim's container
	Input         *stdio.Saved `json:",omitempty"`
	InputEnds     bool         `json:",omitempty"` // as inputSettings has it
}

// upgrade serves MethodUpgrade. If the program cannot be executed, this one continues.
func (x *Executor) upgrade(req wire.UpgradeRequest, call *wire.Call) error {
	program, err := seal.Copy(req.Path)
	if err != nil {
		return fault.Invalid.Errorf("upgrade: %w", err)
	}
	magic := make([]byte, 4)
	if _, err := program.ReadAt(magic, 0); err != nil || string(magic) != elf.ELFMAG {
		program.Close()
		return fault.Invalid.Errorf("upgrade: %s is not a program", req.Path)
	}
	if !x.gate.Close(quiet, shutFor) && !(x.table.cancelAbandoned() && x.gate.Close(2*proc.Patience, shutFor)) {
		program.Close()
		inside, long, _ := x.gate.State()
		x.log.Info("executor was not upgraded: work goes on", "inside", inside, "long", long)
		return fault.Unavailable.Errorf("upgrade: a start or an exit takes too long, try again")
	}
	defer func() { // in any case: while the gate is shut, all containers stand still
		if call.Then == nil {
			program.Close()
			x.gate.Open()
		}
	}()
	state, err := x.save(program)
	if err != nil {
		return err
	}
	call.Then = func() {
		env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
			return strings.HasPrefix(kv, resumeEnv+"=") || strings.HasPrefix(kv, processorsEnv+"=")
		})
		env = append(env, resumeEnv+"="+strconv.Itoa(int(state.Fd())))
		if err := x.become(program, env); err != nil {
			x.log.Error("executor was not upgraded", "err", err)
		}
		x.inherit(false)
		program.Close()
		state.Close()
		x.gate.Open()
	}
	return nil
}

// become executes program in place of this one, unless we are about to exit.
func (x *Executor) become(program *os.File, env []string) (err error) {
	x.table.edit(func() { // that we exit cannot be decided meanwhile
		if err = errExiting; !x.table.exiting() {
			err = seal.Execute(program, os.Args, env) // later requests are for the new program
		}
	})
	return err
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
			poll.WithFD(f, func(fd int) error {
				n = fd
				_, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, flag)
				return err
			})
		}
		return n
	}
	s := &saved{Version: withoutShims, Listener: -1, Lock: fd(x.files.lock)}
	if raw, err := x.files.listener.SyscallConn(); err == nil {
		raw.Control(func(n uintptr) {
			s.Listener = int(n)
			unix.FcntlInt(n, unix.F_SETFD, flag)
		})
	}
	x.execs.save(s, fd)
	x.table.edit(func() {
		for _, c := range x.table.containers {
			if !c.stuck { // delete will find the leftovers of a stuck one
				if c.task != nil && c.task.SandboxAPI {
					s.Version = savedVersion
				} else if c.task != nil {
					s.Version = max(s.Version, withoutSandboxes)
				}
				s.Containers = append(s.Containers, c.save(fd))
			}
		}
	})
	return s
}

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
		OwnPID: c.ownPID, Frozen: c.frozen != nil, Types: c.settings.Stdin, Ours: c.proc.Ours, Pidfd: -1,
		Saved: stdio.None,
	}
	if !s.Ended { // else its descriptors are closed
		s.Pidfd, s.Saved = fd(c.proc.FD), c.io.Save(fd) // a shim's has no pidfd
	}
	return s
}

func (e *execution) save(fd func(*os.File) int) savedExec {
	s := savedExec{ID: e.id, Container: e.c.ID, Pid: e.proc.PID, Pidfd: -1, Group: e.group, Task: e.task != nil}
	select {
	case <-e.ended: // its descriptor may be closed any moment, and the number be reused
		s.Ended, s.Code = true, e.code
	default:
		s.Pidfd = fd(e.proc.FD)
		if e.input != nil {
			input := e.input.Save(fd)
			s.Input, s.InputEnds = &input, e.input.Once()
		}
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
	files, err := makeDirs(o.State)
	if err != nil {
		return nil, err
	}
	files.lock = take(s.Lock, "lock")
	files.listener = unixsock.Resume(l.(*net.UnixListener), o.Socket, socketFiles)
	x, err := assemble(o, files)
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
			if !sc.Frozen {
				continue
			}
			// A freeze lasts as long as the connection that requested it, and all connections have ended.
			thaw := func() {
				if err := c.thaw(); err != nil {
					x.log.Error("container could not be thawed after an upgrade", "container", c.ID, "err", err)
				}
			}
			if c.task != nil {
				go thaw() // its shim may hang
				continue
			}
			thaw()
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
		proc: &proc.Process{PID: s.Ref.Pid, FD: take(s.Pidfd, wire.FDPid), Ours: s.Ours},
	}
	c.Stdin = s.Types || s.Stdin >= 0 // older releases did not save it for a terminal
	c.runtime = x.runtimes.Of(c.ID)
	if c.task, _ = c.runtime.(*runtime.Task); c.task != nil && !s.Ended {
		c.proc = c.task.Adopt(s.Ref.Pid)
	}
	x.table.edit(func() { x.table.containers[c.ID] = c })
	if s.Ended {
		c.phase = ended
		close(c.gone)
		return
	}
	c.io = stdio.ResumeStreams(s.settings.Settings, s.Saved, take, &x.gate, x.log)
	c.closesStdin()
	if x.countOOM(c); c.oom != nil {
		c.oom.Resume(c.oom.Count()) // before the upgrade
	}
	x.setRunning(c)
}

// unclaimed is how long an exec waits for an exec.wait after an upgrade.
const unclaimed = 30 * time.Second

func (t *execs) resume(s savedExec, c *container) {
	e := &execution{id: s.ID, c: c, group: s.Group, ended: make(chan struct{}), gone: make(chan struct{}),
		proc: &proc.Process{PID: s.Pid, FD: take(s.Pidfd, wire.FDPid), Ours: true}}
	if s.Task && c.task != nil {
		t.resumeTask(e, s)
	}
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

// A new program would run for the first time in place of the one that all containers depend on,
// with no way back. So it first runs beside it, to check that it understands the state it will
// get.

// CheckArg is the argument that makes the program only read an executor's state from stdin and
// report, by its exit status, whether it can resume from it.
const CheckArg = "--check-state"

// unknownFlag is the exit status of a program that is older than CheckArg (package flag).
const unknownFlag = 2

// checkTime bounds the check: the gate is shut meanwhile.
const checkTime = 5 * time.Second

// CheckState does what CheckArg promises and exits.
func CheckState() {
	if _, err := readSaved(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// readSaved decodes the previous executor's state.
func readSaved(r io.Reader) (*saved, error) {
	var s saved
	if err := json.NewDecoder(r).Decode(&s); err != nil {
		return nil, fmt.Errorf("state of the executor before: %w", err)
	}
	if s.Version > savedVersion {
		return nil, fault.WrongState.Errorf("state of the executor before has version %d: this one reads up to version %d", s.Version, savedVersion)
	}
	return &s, nil
}

// understands asks the program whether it can resume from the state.
func (x *Executor) understands(program *os.File, state []byte) error {
	defer x.reaper.ExpectChild()()
	ctx, cancel := context.WithTimeout(context.Background(), checkTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, fmt.Sprintf("/proc/self/fd/%d", program.Fd()), CheckArg)
	cmd.Args[0] = os.Args[0]
	cmd.Dir, cmd.Env, cmd.Stdin = "/", []string{"PATH=" + os.Getenv("PATH")}, bytes.NewReader(state)
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == unknownFlag {
		return nil // it is too old to answer
	}
	if err != nil {
		return fault.Invalid.Errorf("upgrade: the new program cannot carry on: %w: %s", err, strings.TrimSpace(runtime.LastLines(out, 3)))
	}
	return nil
}
