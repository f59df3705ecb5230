// Package filetrace records what the process of a test does to the files below a directory, in
// the order in which the kernel did it, and can make one of these calls fail. It is for tests
// only.
//
// It records system calls, libraries' included, so the code under test needs no seam. A helper
// process, which is the test binary once more, seizes all threads of the test (ptrace(2)) and
// follows them from call to call:
//
//	test process                           tracer (the same binary, see init)
//	  Start ─────────────── spawn ───────────▶ PTRACE_SEIZE each thread
//	  the code under test: openat, fsync …  ⇄  looks at each call that changes a file
//	  Mark("saved"), Arm(3, EIO), …  ──────▶  a write to a file that cannot be
//	  Stop ◀────────── gob over a pipe ─────── the Ops
//
// Calls that change files below the directory are let through one at a time, each from entry to
// return. So there is one order, which is the recorded one, and the written content can be read
// back after each of them.
//
// Children of the process are not followed. Shared writable mappings, io_uring and files
// opened with O_SYNC or O_DSYNC are not modelled: Stop reports them.
package filetrace

import (
	"bufio"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// A Kind is the kind of a call.
type Kind string

const (
	Create  Kind = "create"  // a regular file with a name
	Tmpfile Kind = "tmpfile" // one without (O_TMPFILE)
	Mkdir   Kind = "mkdir"
	Mknod   Kind = "mknod"
	Symlink Kind = "symlink"
	Link    Kind = "link"
	Rename  Kind = "rename"
	Swap    Kind = "swap" // renameat2(RENAME_EXCHANGE)
	Remove  Kind = "remove"
	Write   Kind = "write"  // content or size
	Meta    Kind = "meta"   // mode, owner, time or extended attributes
	Fsync   Kind = "fsync"  // of a file or a directory; fdatasync(2) too
	Syncfs  Kind = "syncfs" // sync(2) too
	Marked  Kind = "mark"   // Mark was called
)

// A File is the object with an inode number, as inode(7) describes it.
type File struct {
	Ino      uint64
	Mode     uint32 // type and permissions
	UID, GID uint32
	Rdev     uint64
	Mtime    int64 // ns
	Attrs    map[string]string
	Target   string // of a symbolic link
}

// An Op is one call that succeeded. Paths are relative to the recorded directory, which
// is ".".
type Op struct {
	Kind Kind
	Call string // the system call
	Path string // of a rename, link or symlink: the old name
	To   string // the new one

	Dir, ToDir uint64 // inodes of the directories of Path and To
	File       File   // what was made or changed, after the call
	Off        int64  // Write: offset of Data
	Data       []byte // Write: the content there after the call
	Size       int64  // Write: size of the file after the call
	Text       string // Marked
}

// A Failure is the result of Arm.
type Failure struct {
	Happened bool
	Count    int    // calls that could have failed since Arm
	What     string // the call that failed, and the path
}

// markFD is not a file's descriptor. Data "written" to it is for the tracer.
const markFD = 1<<30 + 7

// A Tracer records the test process.
type Tracer struct {
	t    testing.TB
	cmd  *exec.Cmd
	from *gob.Decoder
	pipe *os.File
	done bool
}

// message is what the tracer sends.
type message struct {
	Ready   bool
	Failure *Failure
	Ops     []Op
	Err     string // why the tracer gave up, or what it does not model
	End     bool
}

// Start records what this process does below dir, which exists, until Stop or the end of the
// test. It skips t where the kernel does not let us trace.
func Start(t testing.TB, dir string) *Tracer {
	t.Helper()
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	tr := &Tracer{t: t}
	var answer *os.File
	tr.cmd, tr.pipe, answer = launch(t, fmt.Sprintf("%s=%d:%s", environment, os.Getpid(), dir))
	tr.from = gob.NewDecoder(bufio.NewReader(tr.pipe))
	// Yama lets only ancestors trace, or processes that we name. EINVAL: no Yama.
	_ = unix.Prctl(unix.PR_SET_PTRACER, uintptr(tr.cmd.Process.Pid), 0, 0, 0)
	answer.Close()
	t.Cleanup(func() { tr.stop() })
	m := tr.receive()
	if m.Err != "" {
		tr.stop()
		refused(t, m.Err)
	}
	return tr
}

// launch runs this program once more, as the tracer that variable makes of it. It sends on
// messages and reads from orders.
func launch(t testing.TB, variable string) (cmd *exec.Cmd, messages, orders *os.File) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	messages, sent, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer sent.Close()
	heard, orders, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer heard.Close()
	cmd = exec.Command(self)
	cmd.Env = append(os.Environ(), variable)
	cmd.ExtraFiles = []*os.File{sent, heard}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, messages, orders
}

// refused ends t if the tracer could not begin: it is skipped where the kernel does not let us
// trace.
func refused(t testing.TB, why string) {
	t.Helper()
	if strings.Contains(why, syscall.EPERM.Error()) || strings.Contains(why, syscall.ENOSYS.Error()) {
		t.Skipf("the kernel does not let us trace: %s", why)
	}
	t.Fatal(why)
}

func (tr *Tracer) receive() message {
	var m message
	if err := tr.from.Decode(&m); err != nil {
		m.Err = "tracer: " + err.Error()
	}
	return m
}

// Mark adds text to the record.
func (tr *Tracer) Mark(text string) { mark("mark " + text) }

// Arm makes the n-th call from now on fail with errno, without effect, counting calls that take
// a file below the directory; n = 0: only count them. It fails once.
func (tr *Tracer) Arm(n int, errno syscall.Errno) { mark(fmt.Sprintf("arm %d %d", n, errno)) }

// Disarm returns the result of Arm.
func (tr *Tracer) Disarm() Failure {
	tr.t.Helper()
	mark("disarm")
	for {
		m := tr.receive()
		if m.Err != "" {
			tr.t.Fatal(m.Err)
		}
		if m.Failure != nil {
			return *m.Failure
		}
	}
}

func mark(text string) {
	// EBADF, of course.
	_, _ = unix.Write(markFD, []byte(text))
}

// Stop ends the recording and returns it.
func (tr *Tracer) Stop() []Op {
	tr.t.Helper()
	mark("stop")
	for {
		m := tr.receive()
		switch {
		case m.Err != "":
			tr.t.Fatal(m.Err)
		case m.End:
			tr.stop()
			return m.Ops
		}
	}
}

func (tr *Tracer) stop() {
	if tr.done {
		return
	}
	tr.done = true
	_ = tr.cmd.Process.Kill() // the threads continue without it
	err := tr.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		tr.t.Error(err)
	}
	tr.pipe.Close()
}

// environment makes a process a tracer, and names the traced process and the directory.
const environment = "CRISP_FILETRACE"

func init() {
	what := os.Getenv(environment)
	if what == "" {
		return
	}
	out := os.NewFile(3, "record")
	_, _ = io.ReadAll(os.NewFile(4, "permission"))
	if err := runTracer(what, gob.NewEncoder(out)); err != nil {
		fmt.Fprintln(os.Stderr, "filetrace:", err)
		os.Exit(1)
	}
	os.Exit(0)
}
