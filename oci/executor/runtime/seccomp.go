package runtime

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/seccomp"
	libseccomp "github.com/seccomp/libseccomp-golang" // ours: oci/libseccomp
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/oci/executor/fastinit"
	"github.com/crisp-cri/crisp/oci/executor/oomscore"
	"github.com/crisp-cri/crisp/oci/executor/poll"
)

// maxProfiles bounds the number of seccomp profiles kept.
const maxProfiles = 64

// A sharedProfile is a seccomp profile that containers share.
type sharedProfile struct {
	compile sync.Once
	shared  *configs.Seccomp // with its program, once compile is done
}

// shareProfile makes containers share their seccomp profile, which is most of a container's
// configuration, and nearly always the same. libcontainer does not change it. own becomes a copy
// of the shared one, with its filter compiled; until then it must be the caller's alone.
func (b *builtins) shareProfile(own *configs.Seccomp) {
	if own == nil {
		return
	}
	// libcontainer's state has the program of the executor that wrote it, which may have had
	// another libseccomp.
	own.Syscalls = slices.DeleteFunc(own.Syscalls, givesProgram)
	data, err := json.Marshal(own)
	if err != nil {
		return
	}
	key := sha256.Sum256(data)
	b.mu.Lock()
	p, ok := b.profiles[key]
	if !ok {
		if len(b.profiles) >= maxProfiles {
			clear(b.profiles)
		}
		p = &sharedProfile{}
		b.profiles[key] = p
	}
	b.mu.Unlock()
	p.compile.Do(func() { p.shared = b.compiled(*own) })
	*own = *p.shared
}

// compiled returns a profile with its filter's program, which spares libcontainer's children its
// compilation; see package libseccomp. To a libcontainer that knows nothing of programs, such as
// an older executor's, the returned profile means the same.
func (b *builtins) compiled(p configs.Seccomp) *configs.Seccomp {
	program, err := libseccomp.Compile(func() error { _, err := seccomp.InitSeccomp(&p); return err })
	if err != nil {
		b.log.Warn("seccomp filter will be compiled by each process that loads it", "err", err)
		return &p
	}
	rule := &configs.Syscall{Name: libseccomp.Rule(program), Action: configs.Allow}
	if p.DefaultAction == configs.Allow {
		rule.Action = configs.Errno // with the default action it would be left out
	}
	p.Syscalls = slices.Concat([]*configs.Syscall{rule}, p.Syscalls)
	return &p
}

// givesProgram reports whether a rule was added by compiled.
func givesProgram(rule *configs.Syscall) bool { return libseccomp.IsRule(rule.Name) }

// load loads a handle of a container from libcontainer's state. It may be kept while the
// container runs (borrow), so its profile is shared with other containers too.
func (b *builtins) load(id string) (*libcontainer.Container, error) {
	lc, err := libcontainer.Load(b.root, id)
	if err != nil {
		return nil, err
	}
	config := lc.Config()
	b.shareProfile(config.Seccomp)
	return lc, nil
}

// filters are the compiled seccomp profiles. libcontainer's child compiles the profile each
// time, which takes 8 to 15 ms; fastinit's gets it compiled once.
type filters struct {
	log *slog.Logger

	mu  sync.Mutex
	all map[*configs.Syscall]*filter // by the first rule of an interned profile; guarded by mu
}

type filter struct {
	profile configs.Seccomp // keeps the key from being reused

	mu      sync.Mutex       // held while it is compiled
	program *fastinit.Filter // guarded by mu
	failed  time.Time        // the last failure; guarded by mu
}

// filterPause is how long a profile that failed is left to libcontainer: the failure may have been
// one of memory or descriptors.
const filterPause = time.Minute

func newFilters(log *slog.Logger) *filters {
	return &filters{log: log, all: make(map[*configs.Syscall]*filter)}
}

// of returns the program of an interned profile; nil means none. The error is
// fastinit.ErrUnsupported if libcontainer has to load it.
func (f *filters) of(profile *configs.Seccomp) (*fastinit.Filter, error) {
	if profile == nil {
		return nil, nil
	}
	if len(profile.Syscalls) == 0 {
		return nil, fastinit.ErrUnsupported
	}
	key := profile.Syscalls[0]
	f.mu.Lock()
	one := f.all[key]
	if one == nil {
		if len(f.all) >= maxProfiles {
			clear(f.all)
		}
		one = &filter{profile: *profile}
		f.all[key] = one
	}
	f.mu.Unlock()
	one.mu.Lock()
	defer one.mu.Unlock()
	if one.program != nil {
		return one.program, nil
	}
	if !one.failed.IsZero() && time.Since(one.failed) < filterPause {
		return nil, fastinit.ErrUnsupported
	}
	var err error
	if one.program, err = compile(&one.profile); err != nil {
		f.log.Warn("seccomp profile was left to libcontainer for a while", "err", err)
		one.program, one.failed = nil, time.Now()
		return nil, fastinit.ErrUnsupported
	}
	return one.program, nil
}

// libcontainer compiles a seccomp profile and loads the program into the kernel at once, without
// exposing it. So a process of our own compiles it, under a filter that reports each attempt to
// load another one (seccomp_unotify(2)): we read the program from its memory, and answer that it
// was loaded. A container then gets exactly what libcontainer would have loaded.

// CompileArg is the argument that makes this program such a process: stdin has the profile as
// JSON, descriptor 3 is the socket for the listener.
const CompileArg = "compile-seccomp"

// compileTime bounds a compilation.
const compileTime = 30 * time.Second

// compile returns the program of a profile that has no listener.
func compile(profile *configs.Seccomp) (*fastinit.Filter, error) {
	data, err := json.Marshal(profile)
	if err != nil {
		return nil, err
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	defer unix.Close(fds[0])
	theirs := os.NewFile(uintptr(fds[1]), "listener")
	defer theirs.Close()
	var out bytes.Buffer
	cmd := oomscore.Set(&exec.Cmd{Path: oomscore.Program, Args: []string{"crisp-executor", CompileArg}}, 0)
	cmd.Stdin, cmd.Stderr, cmd.ExtraFiles = bytes.NewReader(data), &out, []*os.File{theirs}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	theirs.Close()
	timer := time.AfterFunc(compileTime, func() { cmd.Process.Kill() })
	defer timer.Stop()
	f, err := supervise(fds[0], cmd.Process.Pid)
	if err != nil {
		cmd.Process.Kill()
	}
	if werr := cmd.Wait(); werr != nil {
		return nil, fmt.Errorf("compile seccomp profile: %w: %s", errors.Join(werr, err), bytes.TrimSpace(out.Bytes()))
	}
	if err == nil && f == nil {
		err = errors.New("compile seccomp profile: no program was loaded")
	}
	return f, err
}

// supervise answers the notifications of the process pid until it has ended.
func supervise(socket, pid int) (*fastinit.Filter, error) {
	listener, err := poll.Receive(socket, 0)
	if err != nil {
		return nil, fmt.Errorf("compile seccomp profile: %w", err)
	}
	defer unix.Close(listener)
	// Before Linux 6.11 the end of the filter's last user shows only when the process has been
	// reaped.
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	defer unix.Close(pidfd)
	var loaded *fastinit.Filter
	for {
		p := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}, {Fd: int32(pidfd), Events: unix.POLLIN}}
		if _, err := unix.Poll(p, -1); err == unix.EINTR {
			continue
		} else if err != nil {
			return nil, os.NewSyscallError("poll", err)
		}
		if p[0].Revents&unix.POLLIN == 0 {
			return loaded, nil
		}
		var n notification
		if err := notifyIoctl(listener, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&n)); err == unix.EINTR || err == unix.ENOENT {
			continue // interrupted meanwhile: it asks again
		} else if err != nil {
			return nil, os.NewSyscallError("seccomp notification", err)
		}
		answer := notificationAnswer{ID: n.ID, Flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
		if f, ok, err := n.program(pid); err != nil {
			return nil, err
		} else if ok {
			loaded, answer.Flags = f, 0
		}
		if err := notifyIoctl(listener, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&answer)); err != nil && err != unix.ENOENT {
			return nil, os.NewSyscallError("seccomp answer", err)
		}
	}
}

// As in linux/seccomp.h.
type notification struct {
	ID         uint64
	Pid, Flags uint32
	Nr         int32
	Arch       uint32
	IP         uint64
	Args       [6]uint64
}

type notificationAnswer struct {
	ID    uint64
	Val   int64
	Error int32
	Flags uint32
}

func notifyIoctl(fd int, request uint, arg unsafe.Pointer) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(arg))
	if errno != 0 {
		return errno
	}
	return nil
}

// program returns the program that a call wants to load; ok is false if it loads none:
// libseccomp probes flags with a null pointer.
func (n *notification) program(pid int) (_ *fastinit.Filter, ok bool, err error) {
	var flags uint64
	switch {
	case n.Nr == unix.SYS_PRCTL && n.Args[0] == unix.PR_SET_SECCOMP && n.Args[1] == unix.SECCOMP_MODE_FILTER:
	case n.Nr == unix.SYS_SECCOMP && n.Args[0] == unix.SECCOMP_SET_MODE_FILTER:
		flags = n.Args[1]
	default:
		return nil, false, nil
	}
	if n.Args[2] == 0 {
		return nil, false, nil
	}
	head := make([]byte, unsafe.Sizeof(unix.SockFprog{}))
	if err := readMemory(pid, n.Args[2], head); err != nil {
		return nil, false, err
	}
	count := binary.NativeEndian.Uint16(head)
	program := make([]byte, int(count)*unix.SizeofSockFilter)
	err = readMemory(pid, binary.NativeEndian.Uint64(head[8:]), program)
	return &fastinit.Filter{Program: program, Flags: flags}, true, err
}

// readMemory reads from a process, all of to or an error.
func readMemory(pid int, from uint64, to []byte) error {
	local := []unix.Iovec{{Base: &to[0], Len: uint64(len(to))}}
	n, err := unix.ProcessVMReadv(pid, local, []unix.RemoteIovec{{Base: uintptr(from), Len: len(to)}}, 0)
	if err == nil && n != len(to) {
		err = unix.EFAULT
	}
	return os.NewSyscallError("process_vm_readv", err)
}

// Compile is the compiling process. It does not return. The calling goroutine is locked to its
// thread.
func Compile() {
	if err := compileHere(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func compileHere() error {
	var profile configs.Seccomp
	if err := json.NewDecoder(os.Stdin).Decode(&profile); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	// seccomp(2) and prctl(PR_SET_SECCOMP) are reported. On big-endian machines nothing is, and
	// the profile is left to libcontainer.
	const load, equal, answer = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	program := []unix.SockFilter{
		{Code: load, K: 0}, // nr
		{Code: equal, K: unix.SYS_SECCOMP, Jt: 4},
		{Code: equal, K: unix.SYS_PRCTL, Jf: 2},
		{Code: load, K: 16}, // the first argument
		{Code: equal, K: unix.PR_SET_SECCOMP, Jt: 1},
		{Code: answer, K: unix.SECCOMP_RET_ALLOW},
		{Code: answer, K: unix.SECCOMP_RET_USER_NOTIF},
	}
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return os.NewSyscallError("seccomp", errno)
	}
	if err := unix.Sendmsg(3, []byte{0}, unix.UnixRights(int(fd)), nil, 0); err != nil {
		return os.NewSyscallError("sendmsg", err)
	}
	unix.Close(int(fd)) // or our end would not see it close
	unix.Close(3)
	_, err := seccomp.InitSeccomp(&profile)
	return err
}
