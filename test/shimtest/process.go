package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// pidFile is in the bundle, for the call "delete".
const pidFile = "shimtest.pid"

// stdio are the FIFOs of a process; "" = none.
type stdio struct {
	terminal        bool
	stdin, out, err string
}

// A running is a process of a container, from Create or Exec to Delete.
type running struct {
	container *container
	execID    string
	process   process
	io        stdio
	init      initParams
	module    bool // a WebAssembly module, which is not executed
	nothing   bool // a container without a process of its own

	done  chan struct{} // closed once the process has exited
	code  uint32        // valid once done is closed
	ended time.Time     // the same

	mu       sync.Mutex
	paused   bool
	cmd      *exec.Cmd // nil = it is not prepared
	gate     *os.File  // the process starts when this is written to; nil = it was
	pty      *os.File
	stdin    io.Closer
	keepOpen []*os.File // ends of FIFOs
}

func newRunning(c *container, execID string, p process, io stdio) *running {
	return &running{
		container: c, execID: execID, process: p, io: io, done: make(chan struct{}),
		init: initParams{Root: c.root, Process: p, Mounts: c.spec.Mounts, Network: c.spec.network()},
	}
}

// network is the path of the network namespace that a container joins.
func (s spec) network() string {
	for _, n := range s.Linux.Namespaces {
		if n.Type == "network" {
			return n.Path
		}
	}
	return ""
}

// prepare starts the process up to the point where it would execute its program.
func (p *running) prepare() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.module {
		p.init.Process.Args = append([]string{moduleArg}, p.process.Args...)
	}
	if p.nothing {
		p.init.Process.Args = []string{nothingArg}
	}
	params, err := json.Marshal(p.init)
	if err != nil {
		return err
	}
	theirs, ours, err := os.Pipe()
	if err != nil {
		return err
	}
	defer theirs.Close()
	entered, enters, err := os.Pipe()
	if err != nil {
		return err
	}
	defer entered.Close()
	defer enters.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{initEnv + "=" + string(params)}
	cmd.ExtraFiles = []*os.File{theirs, enters}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if p.init.Join == 0 {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNS | syscall.CLONE_NEWPID
	}
	closeAfter, err := p.connect(cmd)
	defer func() {
		for _, f := range closeAfter {
			f.Close()
		}
	}()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	p.cmd, p.gate = cmd, ours
	if p.execID == "" {
		path := filepath.Join(p.container.bundle, pidFile)
		if err := os.WriteFile(path, []byte(strconv.Itoa(cmd.Process.Pid)), 0o600); err != nil {
			return err
		}
	}
	go p.wait()
	enters.Close()
	if text, err := io.ReadAll(entered); len(text) > 0 || err != nil {
		ours.Close() // it exits
		return fmt.Errorf("process of container %s: %s (%v)", p.container.id, text, err)
	}
	return nil
}

// connect gives the command its stdio, and returns the files that it alone keeps open.
func (p *running) connect(cmd *exec.Cmd) (closeAfter []*os.File, err error) {
	write := func(path string) *os.File {
		if path == "" || err != nil {
			return nil
		}
		// The end for reading keeps the process from SIGPIPE while its reader is replaced.
		var read, write *os.File
		if read, err = os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0); err != nil {
			return nil
		}
		if write, err = os.OpenFile(path, os.O_WRONLY, 0); err != nil {
			read.Close()
			return nil
		}
		p.keepOpen = append(p.keepOpen, read)
		closeAfter = append(closeAfter, write)
		return write
	}
	if p.io.terminal {
		return p.connectTerminal(cmd)
	}
	// An *os.File that is nil is no nil io.Writer.
	if f := write(p.io.out); f != nil {
		cmd.Stdout = f
	}
	if f := write(p.io.err); f != nil {
		cmd.Stderr = f
	}
	if err == nil && p.io.stdin != "" {
		var theirs, ours *os.File
		if theirs, ours, err = os.Pipe(); err == nil {
			cmd.Stdin, p.stdin = theirs, ours
			closeAfter = append(closeAfter, theirs)
			go p.copyStdin(ours)
		}
	}
	return closeAfter, err
}

// copyStdin passes on what is in the FIFO until its writers have closed it.
func (p *running) copyStdin(to *os.File) {
	if from, err := os.OpenFile(p.io.stdin, os.O_RDONLY, 0); err == nil {
		_, _ = io.Copy(to, from)
		from.Close()
	}
	if !p.io.terminal {
		p.closeStdin()
	}
}

// connectTerminal makes a terminal between the process and the FIFOs.
func (p *running) connectTerminal(cmd *exec.Cmd) ([]*os.File, error) {
	pty, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	n, err := unix.IoctlGetInt(int(pty.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(pty.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		pty.Close()
		return nil, err
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		pty.Close()
		return nil, err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr.Setctty = true
	p.pty = pty
	out, err := os.OpenFile(p.io.out, os.O_RDWR, 0)
	if err != nil {
		pty.Close()
		return []*os.File{tty}, err
	}
	go func() {
		_, _ = io.Copy(out, pty)
		out.Close()
	}()
	if p.io.stdin != "" {
		go p.copyStdin(pty)
	}
	return []*os.File{tty}, nil
}

// wait keeps the exit.
func (p *running) wait() {
	_ = p.cmd.Wait()
	state := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.code = uint32(state.ExitStatus())
	if state.Signaled() {
		p.code = 128 + uint32(state.Signal())
		if p.module {
			p.code = uint32(state.Signal()) // as runwasi has it
		}
	}
	p.ended = time.Now()
	for _, f := range p.keepOpen {
		f.Close()
	}
	close(p.done)
}

func (p *running) pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

func (p *running) isPrepared() bool { return p.pid() != 0 }

func (p *running) isReleased() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd != nil && p.gate == nil
}

func (p *running) exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// release lets the process execute its program.
func (p *running) release() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil || p.gate == nil {
		return status.Error(codes.FailedPrecondition, "the process was started")
	}
	_, err := p.gate.Write([]byte{1})
	p.gate.Close()
	p.gate = nil
	return err
}

func (p *running) signal(sig syscall.Signal) error {
	if p.exited() || !p.isPrepared() {
		return status.Error(codes.NotFound, errGone.Error())
	}
	err := syscall.Kill(p.pid(), sig)
	if errors.Is(err, syscall.ESRCH) {
		return status.Error(codes.NotFound, errGone.Error())
	}
	return err
}

func (p *running) resize(width, height uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pty == nil {
		return status.Error(codes.InvalidArgument, "the process has no terminal")
	}
	return unix.IoctlSetWinsize(int(p.pty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: uint16(width), Row: uint16(height)})
}

func (p *running) closeStdin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stdin != nil {
		p.stdin.Close()
		p.stdin = nil
	}
}

func (p *running) state(in *task.StateRequest) *task.StateResponse {
	s := &task.StateResponse{
		ID: in.ID, ExecID: in.ExecID, Bundle: p.container.bundle, Pid: uint32(p.pid()), Status: tasktypes.Status_CREATED,
		Stdin: p.io.stdin, Stdout: p.io.out, Stderr: p.io.err, Terminal: p.io.terminal,
	}
	switch {
	case p.exited():
		s.Status, s.ExitStatus, s.ExitedAt = tasktypes.Status_STOPPED, p.code, timestamppb.New(p.ended)
	case p.isPaused():
		s.Status = tasktypes.Status_PAUSED
	case p.isReleased():
		s.Status = tasktypes.Status_RUNNING
	}
	return s
}

// metrics are those of cgroup v1 (io.containerd.cgroups.v1.Metrics): CPU time and memory of the process.
func (p *running) metrics(noPids bool) []byte {
	var cpu, rss uint64
	if data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid())); err == nil {
		if f := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:])); len(f) > 21 {
			user, _ := strconv.ParseUint(f[11], 10, 64)
			system, _ := strconv.ParseUint(f[12], 10, 64)
			pages, _ := strconv.ParseUint(f[21], 10, 64)
			cpu, rss = (user+system)*uint64(10*time.Millisecond), pages*uint64(os.Getpagesize())
		}
	}
	number := func(field protowire.Number, v uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(nil, field, protowire.VarintType), v)
	}
	message := func(field protowire.Number, parts ...[]byte) []byte {
		var all []byte
		for _, part := range parts {
			all = append(all, part...)
		}
		return protowire.AppendBytes(protowire.AppendTag(nil, field, protowire.BytesType), all)
	}
	pids := message(2, number(1, 1))
	if noPids {
		pids = nil
	}
	return append(append(pids, message(3, message(1, number(1, cpu)))...), message(4, number(2, rss), message(33, number(2, rss)))...)
}
