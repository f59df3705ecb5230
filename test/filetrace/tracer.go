package filetrace

import (
	"encoding/gob"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A tracer follows the threads of one process. All of it runs on one thread, as ptrace(2)
// identifies tracers by thread.
type tracer struct {
	pid   int
	dir   string // absolute, without symbolic links
	dev   uint64 // of dir: mounts below it are ignored
	out   chan message
	ops   []Op
	fault string // what is not modelled

	threads map[int]*thread
	busy    *call   // changes a file now
	queue   []*call // wait for busy

	armed   int // counts down to 1, the call that must fail; 0 = none
	errno   syscall.Errno
	lasting bool // later ones must fail, too
	failure Failure

	fallible map[uint64]*sys // of an Inject, which records nothing
	only     []string        // the names that count; none: all
	program  os.FileInfo     // children that execute it are followed; nil: none
	hangs    *thread         // at the entry of a call that is not let through
}

// A thread is a traced thread: stopped at an entry, or running.
type thread struct {
	id     int
	call   *call // between entry and return
	result int   // of its call, if fake
	fake   bool
}

// syscallInfo is struct ptrace_syscall_info of linux/ptrace.h.
type syscallInfo struct {
	Op   uint8 // 1 = entry, 2 = return
	_    [3]uint8
	Arch uint32
	IP   uint64
	SP   uint64
	Nr   uint64    // entry; of a return: the result, and then whether it is an error
	Args [6]uint64 // entry
	_    [2]uint64
}

const (
	ptraceGetSyscallInfo = 0x420e
	options              = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE
	forkOptions          = unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK | unix.PTRACE_O_TRACEEXEC
)

func runTracer(what string, to *gob.Encoder) error {
	pid, dir, _ := strings.Cut(what, ":")
	t := &tracer{dir: dir, threads: map[int]*thread{}, out: make(chan message, 64)}
	ended := make(chan error, 1)
	go func() {
		for m := range t.out {
			if err := to.Encode(m); err != nil || m.End {
				ended <- err
				return
			}
		}
	}()
	var err error
	if t.pid, err = strconv.Atoi(pid); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return err
	}
	t.dev = st.Dev
	if err := t.seize(); err != nil {
		t.out <- message{Err: err.Error()}
		t.out <- message{End: true}
		return <-ended
	}
	t.out <- message{Ready: true}
	for {
		select {
		case err := <-ended:
			return err // who is traced is let go with us
		default:
		}
		var ws unix.WaitStatus
		id, err := unix.Wait4(-1, &ws, unix.WALL, nil)
		switch {
		case err == unix.EINTR:
		case err == unix.ECHILD:
			return nil
		case err != nil:
			return err
		default:
			if err := t.stopped(id, ws); err != nil && err != unix.ESRCH {
				t.out <- message{Err: err.Error()}
				return err
			}
		}
	}
}

func ptrace(request, pid int, addr, data uintptr) error {
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, uintptr(request), uintptr(pid), addr, data, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// seize seizes all threads, those that are created meanwhile too.
func (t *tracer) seize() error {
	how := uintptr(options)
	if t.program != nil {
		how |= forkOptions
	}
	for {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", t.pid))
		if err != nil {
			return err
		}
		fresh := false
		for _, e := range entries {
			id, err := strconv.Atoi(e.Name())
			if err != nil || t.threads[id] != nil {
				continue
			}
			if err := ptrace(unix.PTRACE_SEIZE, id, 0, how); err != nil {
				if err == unix.ESRCH || err == unix.EPERM && tracedBy(id) == os.Getpid() {
					continue // it has ended, or was born to one that we have
				}
				return fmt.Errorf("seize thread %d: %w", id, err)
			}
			if err := ptrace(unix.PTRACE_INTERRUPT, id, 0, 0); err != nil && err != unix.ESRCH {
				return err
			}
			t.threads[id] = &thread{id: id}
			fresh = true
		}
		if !fresh {
			return nil
		}
	}
}

func tracedBy(id int) int {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", id))
	_, rest, _ := strings.Cut(string(data), "TracerPid:")
	line, _, _ := strings.Cut(rest, "\n")
	by, _ := strconv.Atoi(strings.TrimSpace(line))
	return by
}

// stopped handles a thread that has stopped.
func (t *tracer) stopped(id int, ws unix.WaitStatus) error {
	if ws.Exited() || ws.Signaled() {
		if th := t.threads[id]; th != nil && th.call != nil && t.busy == th.call {
			t.busy = nil
		}
		delete(t.threads, id)
		return t.next()
	}
	th := t.threads[id]
	if th == nil {
		th = &thread{id: id}
		t.threads[id] = th
	}
	signal, event := ws.StopSignal(), int(ws)>>16
	switch {
	case signal == unix.SIGTRAP|0x80:
		return t.atCall(th)
	case event == unix.PTRACE_EVENT_STOP && signal != unix.SIGTRAP:
		return ptrace(unix.PTRACE_LISTEN, id, 0, 0) // SIGSTOP and its like
	case event == unix.PTRACE_EVENT_EXEC && t.isForeign(id):
		delete(t.threads, id)
		return ptrace(unix.PTRACE_DETACH, id, 0, 0)
	case event != 0:
		return t.resume(id, 0)
	}
	return t.resume(id, signal)
}

// isForeign reports whether a process executes another program than the traced one.
func (t *tracer) isForeign(id int) bool {
	program, err := os.Stat(fmt.Sprintf("/proc/%d/exe", id))
	return err != nil || !os.SameFile(program, t.program)
}

func (t *tracer) resume(id int, signal syscall.Signal) error {
	return ptrace(unix.PTRACE_SYSCALL, id, 0, uintptr(signal))
}

// atCall handles the entry of a system call, or the return from it.
func (t *tracer) atCall(th *thread) error {
	var info syscallInfo
	if err := ptrace(ptraceGetSyscallInfo, th.id, unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info))); err != nil {
		return err
	}
	if info.Op == 1 {
		return t.entered(th, info.Nr, info.Args)
	}
	if th.fake {
		th.fake = false
		if err := setResult(th.id, th.result); err != nil {
			return err
		}
		th.call = nil
		return t.resume(th.id, 0)
	}
	c := th.call
	th.call = nil
	if c != nil {
		if int64(info.Nr) >= 0 {
			t.returned(c, int64(info.Nr))
		}
		t.busy = nil
	}
	if err := t.resume(th.id, 0); err != nil && err != unix.ESRCH {
		return err
	}
	return t.next()
}

func (t *tracer) entered(th *thread, nr uint64, args [6]uint64) error {
	if nr == unix.SYS_WRITE && args[0] == markFD {
		text, err := t.read(th.id, uintptr(args[1]), int(args[2]))
		if err != nil {
			return err
		}
		t.order(string(text))
		return t.resume(th.id, 0)
	}
	if t.fallible != nil {
		return t.inject(th, nr, args)
	}
	s := table()[nr]
	if s == nil {
		return t.resume(th.id, 0)
	}
	c := &call{thread: th, name: s.name, sys: s, args: args}
	if s.locate == nil || !s.locate(t, c) {
		return t.resume(th.id, 0)
	}
	if t.armed > 0 || t.errno != 0 {
		if fail, err := t.fail(c); fail || err != nil {
			return err
		}
	}
	if !s.changes || !c.change {
		return t.resume(th.id, 0)
	}
	t.queue = append(t.queue, c)
	return t.next()
}

// next lets the first of the waiting calls change a file, if none does now.
func (t *tracer) next() error {
	for t.busy == nil && len(t.queue) > 0 {
		c := t.queue[0]
		t.queue = t.queue[1:]
		if t.threads[c.thread.id] != c.thread {
			continue // it was killed
		}
		t.busy, c.thread.call = c, c
		c.before(t)
		if err := t.resume(c.thread.id, 0); err != nil && err != unix.ESRCH {
			return err
		}
	}
	return nil
}

// fail makes c fail if it is the one, and reports whether it was.
func (t *tracer) fail(c *call) (bool, error) {
	t.failure.Count++
	if t.armed == 0 {
		return false, nil
	}
	if t.armed--; t.armed > 0 {
		return false, nil
	}
	errno := t.errno
	if t.lasting {
		t.armed = 1
	}
	if !t.failure.Happened {
		t.failure.What = fmt.Sprintf("%s %s: %s", c.name, t.rel(c.path), unix.ErrnoName(errno))
	}
	t.failure.Happened = true
	c.thread.fake, c.thread.result = true, -int(errno)
	if !c.sys.happens { // close(2) closes, whatever it returns
		if err := skipCall(c.thread.id); err != nil {
			return true, err
		}
	}
	return true, t.resume(c.thread.id, 0)
}

// order carries out an order of the test.
func (t *tracer) order(text string) {
	verb, rest, _ := strings.Cut(text, " ")
	switch verb {
	case "mark":
		t.ops = append(t.ops, Op{Kind: Marked, Text: rest})
	case "arm":
		t.failure, t.lasting = Failure{}, false
		fmt.Sscan(rest, &t.armed, &t.errno, &t.lasting)
	case "only":
		t.only = strings.Fields(rest)
	case "disarm", "look":
		f := t.failure
		if verb == "disarm" {
			t.armed, t.errno = 0, 0
		}
		t.out <- message{Failure: &f}
	case "stop":
		if t.fault != "" {
			t.out <- message{Err: t.fault}
		}
		t.out <- message{Ops: t.ops, End: true}
	}
}

func (t *tracer) unmodelled(c *call, what string) {
	if t.fault == "" {
		t.fault = fmt.Sprintf("%s of %s is not modelled: %s", c.name, t.rel(c.path), what)
	}
}

// rel returns path in the form of Op.
func (t *tracer) rel(path string) string {
	if rel, err := filepath.Rel(t.dir, path); err == nil {
		return rel
	}
	return path
}

func (t *tracer) below(path string) bool {
	return path == t.dir || strings.HasPrefix(path, t.dir+"/")
}

// read returns n bytes of the process's memory.
func (t *tracer) read(id int, at uintptr, n int) ([]byte, error) {
	b := make([]byte, n)
	if n == 0 {
		return b, nil
	}
	local := []unix.Iovec{{Base: &b[0]}}
	local[0].SetLen(n)
	got, err := unix.ProcessVMReadv(id, local, []unix.RemoteIovec{{Base: at, Len: n}}, 0)
	return b[:max(got, 0)], err
}

// text returns the string at the address, up to its null byte.
func (t *tracer) text(id int, at uintptr) string {
	var all []byte
	for len(all) < unix.PathMax {
		n := os.Getpagesize() - int(at)%os.Getpagesize()
		b, err := t.read(id, at, min(n, 256))
		for i := range b {
			if b[i] == 0 {
				return string(append(all, b[:i]...))
			}
		}
		all = append(all, b...)
		at += uintptr(len(b))
		if err != nil || len(b) == 0 {
			break
		}
	}
	return string(all)
}

// fd returns the path of an open file, "" if it is not a file with one.
func (t *tracer) fd(id int, fd uint64) string {
	path, err := os.Readlink(fdLink(id, fd))
	if err != nil || !filepath.IsAbs(path) {
		return ""
	}
	return strings.TrimSuffix(path, " (deleted)")
}

func fdLink(id int, fd uint64) string { return fmt.Sprintf("/proc/%d/fd/%d", id, int32(fd)) }

// at returns the absolute path of the name argument of a call of the …at(2) family.
func (t *tracer) at(id int, dirfd uint64, name string) string {
	switch {
	case strings.HasPrefix(name, "/proc/self/"), strings.HasPrefix(name, "/proc/thread-self/"):
		_, rest, _ := strings.Cut(name, "self/")
		return fmt.Sprintf("/proc/%d/%s", id, rest)
	case filepath.IsAbs(name):
		return filepath.Clean(name)
	}
	var base string
	if int32(dirfd) == unix.AT_FDCWD {
		base, _ = os.Readlink(fmt.Sprintf("/proc/%d/cwd", id))
	} else {
		base = t.fd(id, dirfd)
	}
	if base == "" {
		return ""
	}
	return filepath.Join(base, name)
}

// file describes what is at path now.
func (t *tracer) file(path string, follow bool) (File, bool) {
	var st unix.Stat_t
	flags := unix.AT_SYMLINK_NOFOLLOW
	if follow {
		flags = 0
	}
	if err := unix.Fstatat(unix.AT_FDCWD, path, &st, flags); err != nil || st.Dev != t.dev {
		return File{}, false
	}
	f := File{
		Ino: st.Ino, Mode: st.Mode, UID: st.Uid, GID: st.Gid, Rdev: st.Rdev, Mtime: st.Mtim.Nano(),
		Attrs: attrs(path, follow),
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		f.Target, _ = os.Readlink(path)
	}
	return f, true
}

// Attrs returns the extended attributes of the file at path itself, even if it is a
// symlink.
func Attrs(path string) map[string]string { return attrs(path, false) }

func attrs(path string, follow bool) map[string]string {
	list, get := unix.Llistxattr, unix.Lgetxattr
	if follow {
		list, get = unix.Listxattr, unix.Getxattr
	}
	b := make([]byte, 1<<16)
	n, err := list(path, b)
	if err != nil || n == 0 {
		return nil
	}
	m := map[string]string{}
	for name := range strings.SplitSeq(strings.Trim(string(b[:n]), "\x00"), "\x00") {
		if n, err := get(path, name, b); err == nil {
			m[name] = string(b[:n])
		}
	}
	return m
}

// content returns at most n bytes of a file from off on, and its size.
func (t *tracer) content(path string, off, n int64) (data []byte, size int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	data = make([]byte, max(0, min(n, st.Size()-off)))
	if len(data) > 0 {
		if _, err := f.ReadAt(data, off); err != nil {
			return nil, 0, err
		}
	}
	return data, st.Size(), nil
}

func position(id int, fd uint64) (int64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", id, int32(fd)))
	if err != nil {
		return 0, err
	}
	_, rest, ok := strings.Cut(string(data), "pos:")
	if !ok {
		return 0, errors.New("fdinfo has no pos")
	}
	line, _, _ := strings.Cut(rest, "\n")
	return strconv.ParseInt(strings.TrimSpace(line), 10, 64)
}
