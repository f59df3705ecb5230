package filetrace

import (
	"bufio"
	"encoding/binary"
	"encoding/gob"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Hang as the error in Inject.Arm makes the call not return before Disarm.
const Hang syscall.Errno = 0

// An Inject makes system calls of another process fail, whichever library makes them. Calls
// that the Go runtime itself depends on are left alone: memory, threads, signals, clocks and
// the poller.
type Inject struct {
	t    testing.TB
	cmd  *exec.Cmd
	ask  *os.File
	pipe *os.File
	from *gob.Decoder
}

// Attach traces the threads of the process until Release, or until it exits. Its children
// are not followed. It skips t where the kernel does not let us trace.
func Attach(t testing.TB, pid int) *Inject {
	t.Helper()
	return attach(t, strconv.Itoa(pid))
}

// AttachForks is Attach for the calls that start a process or a program: fork and execve of every
// kind. Those of the process's children, and of theirs, count too, until these execute another
// program than its own.
func AttachForks(t testing.TB, pid int) *Inject {
	t.Helper()
	return attach(t, strconv.Itoa(pid)+forksSuffix)
}

const forksSuffix = " forks"

func attach(t testing.TB, what string) *Inject {
	t.Helper()
	i := &Inject{t: t}
	i.cmd, i.pipe, i.ask = launch(t, injectEnvironment+"="+what)
	i.from = gob.NewDecoder(bufio.NewReader(i.pipe))
	t.Cleanup(i.Release)
	var m message
	if err := i.from.Decode(&m); err != nil {
		t.Fatal(err)
	}
	if m.Err != "" {
		refused(t, m.Err)
	}
	return i
}

// Only makes Arm count only the calls of these names, and all of them without a name. "send" is a
// write(2) to a socket.
func (i *Inject) Only(names ...string) {
	fmt.Fprintln(i.ask, "only "+strings.Join(names, " "))
	var m message
	_ = i.from.Decode(&m)
}

// Arm makes the n-th call from now on fail with errno, without effect; n = 0: only count
// them. It fails once.
func (i *Inject) Arm(n int, errno syscall.Errno) { i.arm(n, errno, false) }

// ArmAll makes the n-th call from now on fail, and all later ones.
func (i *Inject) ArmAll(n int, errno syscall.Errno) { i.arm(n, errno, true) }

func (i *Inject) arm(n int, errno syscall.Errno, lasting bool) {
	fmt.Fprintf(i.ask, "arm %d %d %t\n", n, int(errno), lasting)
	var m message
	_ = i.from.Decode(&m) // Disarm reports an exit of the process
}

// Hangs reports whether a call hangs.
func (i *Inject) Hangs() bool {
	fmt.Fprintln(i.ask, "look")
	var m message
	return i.from.Decode(&m) == nil && m.Failure != nil && m.Failure.Happened
}

// Disarm returns the result of Arm. It is unknown for a process that has exited.
func (i *Inject) Disarm() (Failure, bool) {
	fmt.Fprintln(i.ask, "disarm")
	for {
		var m message
		if err := i.from.Decode(&m); err != nil {
			return Failure{}, false
		}
		if m.Failure != nil {
			return *m.Failure, true
		}
	}
}

// Release stops tracing the process.
func (i *Inject) Release() {
	if i.cmd.ProcessState != nil {
		return
	}
	_ = i.cmd.Process.Kill() // the threads continue without it
	_ = i.cmd.Wait()
	i.ask.Close()
	i.pipe.Close()
}

const injectEnvironment = "CRISP_INJECT"

func init() {
	what := os.Getenv(injectEnvironment)
	if what == "" {
		return
	}
	if err := runInject(what, gob.NewEncoder(os.NewFile(3, "answers")), os.NewFile(4, "orders")); err != nil {
		fmt.Fprintln(os.Stderr, "filetrace:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// runInject is a tracer that also reads orders while nothing happens: so it does not wait in
// wait4(2), but for SIGCHLD, which each stop raises.
func runInject(what string, to *gob.Encoder, orders io.Reader) error {
	what, forks := strings.CutSuffix(what, forksSuffix)
	pid, err := strconv.Atoi(what)
	if err != nil {
		return err
	}
	stops := make(chan os.Signal, 1)
	signal.Notify(stops, unix.SIGCHLD)
	t := &tracer{pid: pid, dir: "/", threads: map[int]*thread{}, out: make(chan message, 64), fallible: fallible()}
	if forks {
		t.fallible = starting()
		if t.program, err = os.Stat(fmt.Sprintf("/proc/%d/exe", pid)); err != nil {
			return to.Encode(message{Err: err.Error()})
		}
	}
	if err := t.seize(); err != nil {
		return to.Encode(message{Err: err.Error()})
	}
	if err := to.Encode(message{Ready: true}); err != nil {
		return err
	}
	heard := make(chan string)
	go func() {
		for s := bufio.NewScanner(orders); s.Scan(); {
			heard <- s.Text()
		}
		close(heard)
	}()
	for {
		var ws unix.WaitStatus
		id, err := unix.Wait4(-1, &ws, unix.WALL|unix.WNOHANG, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.ECHILD:
			return nil // it has ended
		case err != nil:
			return err
		case id > 0:
			if err := t.stopped(id, ws); err != nil && err != unix.ESRCH {
				return err
			}
			continue
		}
		select {
		case <-stops:
		case text, ok := <-heard:
			if !ok {
				return nil
			}
			t.order(text)
			answer := message{Ready: true}
			if text == "disarm" || text == "look" {
				answer = <-t.out
			}
			if err := to.Encode(answer); err != nil {
				return err
			}
			if text == "disarm" {
				if err := t.unhang(); err != nil {
					return err
				}
			}
		}
	}
}

// inject counts the call, and makes it fail or hang if it is the one.
func (t *tracer) inject(th *thread, nr uint64, args [6]uint64) error {
	s := t.fallible[nr]
	if s == nil || len(t.only) > 0 && !slices.Contains(t.only, s.name) && !slices.Contains(t.only, t.sends(th, nr, args)) || !t.may(th, nr, args) {
		return t.resume(th.id, 0)
	}
	c := &call{thread: th, name: s.name, sys: s, args: args}
	if t.armed == 1 && s.locate != nil {
		s.locate(t, c) // for Failure.What
	}
	if t.armed == 1 && t.errno == Hang {
		t.armed, t.hangs = 0, th
		t.failure.Count++
		t.failure.Happened = true
		t.failure.What = fmt.Sprintf("%s %s hangs", c.name, c.path)
		return nil
	}
	if fail, err := t.fail(c); fail || err != nil {
		return err
	}
	return t.resume(th.id, 0)
}

// unhang lets the hanging call continue.
func (t *tracer) unhang() error {
	th := t.hangs
	t.hangs = nil
	if th == nil || t.threads[th.id] != th {
		return nil
	}
	if err := t.resume(th.id, 0); err != unix.ESRCH {
		return err
	}
	return nil
}

// sends returns "send" for a write(2) to a socket.
func (t *tracer) sends(th *thread, nr uint64, args [6]uint64) string {
	if nr == unix.SYS_WRITE {
		if link, _ := os.Readlink(fdLink(th.id, args[0])); strings.HasPrefix(link, "socket:") {
			return "send"
		}
	}
	return ""
}

// may reports whether the kernel ever refuses this call, and a Go program can do without it.
func (t *tracer) may(th *thread, nr uint64, args [6]uint64) bool {
	switch nr {
	case unix.SYS_CLONE:
		return args[0]&unix.CLONE_THREAD == 0
	case unix.SYS_CLONE3:
		flags, err := t.read(th.id, uintptr(args[0]), 8)
		return err == nil && binary.NativeEndian.Uint64(flags)&unix.CLONE_THREAD == 0
	case unix.SYS_FCNTL:
		return args[1] != unix.F_GETFL && args[1] != unix.F_SETFL && args[1] != unix.F_GETFD && args[1] != unix.F_SETFD
	case unix.SYS_READ, unix.SYS_WRITE:
		// An eventfd wakes the poller.
		link, _ := os.Readlink(fdLink(th.id, args[0]))
		return !strings.HasSuffix(link, "[eventfd]")
	}
	return true
}

// starting are the calls of AttachForks; oldForks adds amd64's.
var starting = sync.OnceValue(func() map[uint64]*sys {
	m := map[uint64]*sys{
		unix.SYS_CLONE: {name: "clone"}, unix.SYS_CLONE3: {name: "clone3"},
		unix.SYS_EXECVE: {name: "execve", locate: named(-1, 0)}, unix.SYS_EXECVEAT: {name: "execveat", locate: named(0, 1)},
	}
	for nr, name := range oldForks {
		m[nr] = &sys{name: name}
	}
	return m
})

// fallible are the calls that can be made to fail. Those of table have their effect on any
// file.
var fallible = sync.OnceValue(func() map[uint64]*sys {
	m := map[uint64]*sys{}
	for nr, s := range table() {
		if nr != unix.SYS_MMAP {
			m[nr] = s
		}
	}
	fd := looks(byFD(0))
	for nr, name := range map[uint64]string{
		unix.SYS_ACCEPT4: "accept4", unix.SYS_BIND: "bind", unix.SYS_CONNECT: "connect", unix.SYS_LISTEN: "listen",
		unix.SYS_SENDMSG: "sendmsg", unix.SYS_SENDTO: "sendto", unix.SYS_RECVMSG: "recvmsg", unix.SYS_RECVFROM: "recvfrom",
		unix.SYS_SETSOCKOPT: "setsockopt", unix.SYS_GETSOCKOPT: "getsockopt", unix.SYS_GETSOCKNAME: "getsockname",
		unix.SYS_SOCKET: "socket", unix.SYS_SOCKETPAIR: "socketpair", unix.SYS_PIPE2: "pipe2", unix.SYS_DUP3: "dup3",
		unix.SYS_FCNTL: "fcntl", unix.SYS_FLOCK: "flock", unix.SYS_IOCTL: "ioctl", unix.SYS_FSTATFS: "fstatfs",
		unix.SYS_STATFS: "statfs", unix.SYS_MEMFD_CREATE: "memfd_create", unix.SYS_PIDFD_OPEN: "pidfd_open",
		unix.SYS_PIDFD_SEND_SIGNAL: "pidfd_send_signal", unix.SYS_KILL: "kill", unix.SYS_WAITID: "waitid", unix.SYS_WAIT4: "wait4",
		unix.SYS_UNSHARE: "unshare", unix.SYS_SETNS: "setns", unix.SYS_FSOPEN: "fsopen", unix.SYS_FSCONFIG: "fsconfig",
		unix.SYS_FSMOUNT: "fsmount", unix.SYS_FSPICK: "fspick", unix.SYS_MOUNT_SETATTR: "mount_setattr",
		unix.SYS_INOTIFY_INIT1: "inotify_init1", unix.SYS_INOTIFY_ADD_WATCH: "inotify_add_watch", unix.SYS_PRCTL: "prctl",
		unix.SYS_CLONE: "clone", unix.SYS_CLONE3: "clone3", unix.SYS_FADVISE64: "fadvise64", unix.SYS_LSEEK: "lseek",
		unix.SYS_CHDIR: "chdir", unix.SYS_FCHDIR: "fchdir", unix.SYS_PRLIMIT64: "prlimit64", unix.SYS_CAPSET: "capset",
	} {
		s := fd
		s.name = name
		if nr == unix.SYS_SOCKET || nr == unix.SYS_MOUNT_SETATTR || nr == unix.SYS_WAITID || nr == unix.SYS_WAIT4 || nr == unix.SYS_KILL || nr == unix.SYS_CLONE || nr == unix.SYS_CLONE3 || nr == unix.SYS_PRCTL {
			s.locate = nil // the first argument is not a descriptor
		}
		if m[nr] == nil {
			m[nr] = &s
		}
	}
	return m
})
