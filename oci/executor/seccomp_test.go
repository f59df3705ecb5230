package executor_test

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/seccomp"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"
	libseccomp "github.com/seccomp/libseccomp-golang"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/oci/wire"
	"github.com/crisp-cri/crisp/test/testenv"
)

// filterArg makes the test binary load the filter of a profile, and wait.
const filterArg = "load-filter"

// loadFilter loads the filter of the profile in the file path into one thread, as
// libcontainer's children do, prints the thread's ID and waits for the end of stdin.
func loadFilter(path string) {
	runtime.LockOSThread()
	data, err := os.ReadFile(path)
	var profile configs.Seccomp
	if err == nil {
		err = json.Unmarshal(data, &profile)
	}
	var id int
	loaded := make(chan bool)
	go func() {
		runtime.LockOSThread()
		id = unix.Gettid()
		if err == nil {
			_, err = seccomp.InitSeccomp(&profile)
		}
		close(loaded)
		select {}
	}()
	<-loaded
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(id)
	bufio.NewReader(os.Stdin).ReadByte()
	os.Exit(0)
}

// An instruction is one of a filter, as the kernel has it.
type instruction = unix.SockFilter

// reference returns the filter of a process that loads the profile itself, and whether it
// logs.
func reference(t *testing.T, profile *configs.Seccomp) (filter []instruction, log bool) {
	t.Helper()
	data, err := json.Marshal(profile)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "profile.json")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, filterArg, path)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		stdin.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the process that loads the filter itself: %v", err)
		}
	}()
	said, _ := bufio.NewReader(stdout).ReadString('\n')
	var id int
	if _, err := fmt.Sscan(said, &id); err != nil {
		t.Fatalf("filter was not loaded: %s", said)
	}
	return kernelFilter(t, id)
}

// kernelFilter returns the only filter of a thread, from the kernel, and whether it logs.
func kernelFilter(t *testing.T, id int) (filter []instruction, log bool) {
	t.Helper()
	done := make(chan error)
	go func() {
		// ptrace(2) takes requests from the thread that attached. It ends with the goroutine.
		runtime.LockOSThread()
		var err error
		filter, log, err = traceFilter(id)
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatalf("filter of thread %d: %v", id, err)
	}
	return filter, log
}

func traceFilter(id int) (filter []instruction, log bool, err error) {
	if err := unix.PtraceSeize(id); err != nil {
		return nil, false, fmt.Errorf("seize: %w", err)
	}
	if err := unix.PtraceInterrupt(id); err != nil {
		return nil, false, fmt.Errorf("interrupt: %w", err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		var status unix.WaitStatus
		switch pid, err := unix.Wait4(id, &status, unix.WNOHANG|unix.WALL, nil); {
		case err != nil && err != unix.EINTR:
			return nil, false, fmt.Errorf("wait: %w", err)
		case pid == id && !status.Stopped():
			return nil, false, fmt.Errorf("it ended: %#x", status)
		case pid == id:
			defer unix.PtraceDetach(id)
			return stoppedFilter(id)
		case time.Now().After(deadline):
			return nil, false, errors.New("it does not stop")
		}
	}
}

// stoppedFilter is kernelFilter for a stopped tracee.
func stoppedFilter(id int) (filter []instruction, log bool, err error) {
	const getFilter, getMetadata = 0x420c, 0x420d
	request := func(request, addr int, data unsafe.Pointer) (int, error) {
		n, _, errno := unix.Syscall6(unix.SYS_PTRACE, uintptr(request), uintptr(id), uintptr(addr), uintptr(data), 0, 0)
		if errno != 0 {
			return 0, errno
		}
		return int(n), nil
	}
	n, err := request(getFilter, 0, nil)
	if err != nil {
		return nil, false, fmt.Errorf("length: %w", err)
	}
	filter = make([]instruction, n)
	if _, err := request(getFilter, 0, unsafe.Pointer(&filter[0])); err != nil {
		return nil, false, fmt.Errorf("program: %w", err)
	}
	if _, err := request(getFilter, 1, nil); err != unix.ENOENT {
		return nil, false, fmt.Errorf("a second filter: %v", err)
	}
	var metadata struct{ at, flags uint64 }
	if _, err := request(getMetadata, int(unsafe.Sizeof(metadata)), unsafe.Pointer(&metadata)); err != nil {
		return nil, false, fmt.Errorf("flags: %w", err)
	}
	return filter, metadata.flags&unix.SECCOMP_FILTER_FLAG_LOG != 0, nil
}

// A machine evaluates a filter as the kernel would.
type machine struct{ vm *bpf.VM }

func newMachine(t *testing.T, filter []instruction) machine {
	t.Helper()
	raw := make([]bpf.RawInstruction, len(filter))
	for i, f := range filter {
		raw[i] = bpf.RawInstruction{Op: f.Code, Jt: f.Jt, Jf: f.Jf, K: f.K}
	}
	program, ok := bpf.Disassemble(raw)
	if !ok {
		t.Fatal("the filter has unknown instructions")
	}
	vm, err := bpf.NewVM(program)
	if err != nil {
		t.Fatal(err)
	}
	return machine{vm}
}

// A call is a system call as a filter sees it: struct seccomp_data.
type call struct {
	number, arch uint32
	pointer      uint64
	args         [6]uint64
}

func (m machine) verdict(t *testing.T, c call) uint32 {
	t.Helper()
	var native [64]byte
	if _, err := binary.Encode(native[:], binary.NativeEndian, c); err != nil {
		t.Fatal(err)
	}
	// The interpreter is made for packets, whose words are big-endian.
	var data [64]byte
	for i := 0; i < len(data); i += 4 {
		binary.BigEndian.PutUint32(data[i:], binary.NativeEndian.Uint32(native[i:]))
	}
	v, err := m.vm.Run(data[:])
	if err != nil {
		t.Fatal(err)
	}
	return uint32(v)
}

// arches are the architectures of the profiles below, by their names in the spec, in
// libseccomp and in the kernel.
var arches = []struct {
	spec  specs.Arch
	scmp  libseccomp.ScmpArch
	audit uint32
	first uint32 // number of its first system call
}{
	{specs.ArchX86_64, libseccomp.ArchAMD64, unix.AUDIT_ARCH_X86_64, 0},
	{specs.ArchX32, libseccomp.ArchX32, unix.AUDIT_ARCH_X86_64, 1 << 30},
	{specs.ArchX86, libseccomp.ArchX86, unix.AUDIT_ARCH_I386, 0},
	{specs.ArchAARCH64, libseccomp.ArchARM64, unix.AUDIT_ARCH_AARCH64, 0},
	{specs.ArchARM, libseccomp.ArchARM, unix.AUDIT_ARCH_ARM, 0},
	{specs.ArchRISCV64, libseccomp.ArchRISCV64, unix.AUDIT_ARCH_RISCV64, 0},
	{specs.ArchPPC64LE, libseccomp.ArchPPC64LE, unix.AUDIT_ARCH_PPC64LE, 0},
	{specs.ArchMIPSEL64, libseccomp.ArchMIPSEL64, unix.AUDIT_ARCH_MIPSEL64, 5000},
	{"", 0, unix.AUDIT_ARCH_SPARC64, 0}, // in no profile
}

// calls calls yield with system calls of every number on every architecture, and with
// arguments around the bounds of each rule.
func calls(profile *configs.Seccomp, yield func(call)) {
	for _, a := range arches {
		for n := range uint32(700) {
			for _, number := range []uint32{n, a.first + n, n | 1<<30, n + 0xf0000, -n} {
				yield(call{number: number, arch: a.audit})
				yield(call{number: number, arch: a.audit, pointer: 1 << 40, args: [6]uint64{1 << 35, 2, 3, 4, 5, 6}})
				yield(call{number: number, arch: a.audit, pointer: ^uint64(0), args: [6]uint64{^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)}})
			}
		}
		if a.spec == "" {
			continue
		}
		for _, rule := range profile.Syscalls {
			number, err := libseccomp.GetSyscallFromNameByArch(rule.Name, a.scmp)
			if err != nil {
				continue
			}
			around(rule, [6]uint64{}, func(args [6]uint64) { yield(call{number: uint32(number), arch: a.audit, args: args}) })
		}
	}
}

// around calls yield with arguments around the bounds of the rule: each argument that it
// tests is below, at and above its bound.
func around(rule *configs.Syscall, args [6]uint64, yield func([6]uint64)) {
	if len(rule.Args) == 0 {
		yield(args)
		return
	}
	rest := *rule
	rest.Args = rule.Args[1:]
	a := rule.Args[0]
	for _, bound := range []uint64{a.Value, a.ValueTwo, a.Value & a.ValueTwo, a.Value | a.ValueTwo, ^a.Value, 0} {
		for _, v := range []uint64{bound - 1, bound, bound + 1, bound ^ 1<<32, bound ^ 1<<31, bound ^ 1<<63} {
			args[a.Index] = v
			around(&rest, args, yield)
		}
	}
}

// sameVerdicts compares two filters, both read from the kernel.
func sameVerdicts(t *testing.T, what string, profile *configs.Seccomp, want, got []instruction) {
	t.Helper()
	w, g := newMachine(t, want), newMachine(t, got)
	asked, verdicts := 0, map[uint32]bool{}
	calls(profile, func(c call) {
		expected := w.verdict(t, c)
		asked++
		verdicts[expected] = true
		if v := g.verdict(t, c); v != expected && !t.Failed() {
			t.Errorf("%s: verdict %#x on %+v, libseccomp's filter has %#x", what, v, c, expected)
		}
	})
	t.Logf("%s: %d instructions, %d calls, %d different verdicts", what, len(got), asked, len(verdicts))
}

// defaultProfile returns crispd's RuntimeDefault for a container without capabilities on
// amd64, from the golden file of server/spec.
func defaultProfile(t testing.TB) *specs.LinuxSeccomp {
	t.Helper()
	data, err := os.ReadFile("../../server/spec/testdata/seccomp-default.txtar")
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(string(data), "-- spec.json --\n")
	var spec specs.Spec
	if err := json.Unmarshal([]byte(text), &spec); !ok || err != nil {
		t.Fatalf("the default profile's golden file: %v", err)
	}
	if spec.Linux.Seccomp == nil || len(spec.Linux.Seccomp.Syscalls) < 5 {
		t.Fatal("the default profile's golden file has no profile")
	}
	return spec.Linux.Seccomp
}

// withRules returns the default profile with more rules, such as a node's profile may have:
// of every action and condition. Programs run under it as under the default.
func withRules(t *testing.T) *specs.LinuxSeccomp {
	p := defaultProfile(t)
	seven, nosys := uint(7), uint(unix.ENOSYS)
	arg := func(index uint, op specs.LinuxSeccompOperator, values ...uint64) specs.LinuxSeccompArg {
		a := specs.LinuxSeccompArg{Index: index, Op: op, Value: values[0]}
		if len(values) > 1 {
			a.ValueTwo = values[1]
		}
		return a
	}
	p.Architectures = []specs.Arch{specs.ArchX86_64, specs.ArchX86, specs.ArchX32}
	p.Syscalls = append(p.Syscalls,
		specs.LinuxSyscall{Names: []string{"kexec_load", "no_such_call"}, Action: specs.ActKillProcess},
		specs.LinuxSyscall{Names: []string{"reboot"}, Action: specs.ActKillThread},
		specs.LinuxSyscall{Names: []string{"swapon"}, Action: specs.ActTrap},
		specs.LinuxSyscall{Names: []string{"acct"}, Action: specs.ActTrace, ErrnoRet: &seven},
		specs.LinuxSyscall{Names: []string{"settimeofday"}, Action: specs.ActLog},
		specs.LinuxSyscall{Names: []string{"swapoff"}, Action: specs.ActErrno, ErrnoRet: &nosys},
		specs.LinuxSyscall{Names: []string{"setns"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{
			arg(0, specs.OpGreaterEqual, 3), arg(1, specs.OpMaskedEqual, 0x7e020000, 0x40000000)}},
		specs.LinuxSyscall{Names: []string{"unshare"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{
			arg(0, specs.OpEqualTo, 0x10), arg(0, specs.OpEqualTo, 0x1_0000_0020)}}, // either value matches
		specs.LinuxSyscall{Names: []string{"add_key"}, Action: specs.ActErrno, ErrnoRet: &seven, Args: []specs.LinuxSeccompArg{
			arg(3, specs.OpLessThan, 0x1_0000_0000), arg(4, specs.OpNotEqual, 9), arg(5, specs.OpGreaterThan, 5)}},
		specs.LinuxSyscall{Names: []string{"keyctl"}, Action: specs.ActLog, Args: []specs.LinuxSeccompArg{arg(0, specs.OpLessEqual, 17)}},
	)
	return p
}

// testProfiles returns profiles under which testbin runs.
func testProfiles(t *testing.T) map[string]*specs.LinuxSeccomp {
	foreign := withRules(t)
	foreign.Architectures = nil
	for _, a := range arches {
		if a.spec != "" && a.spec != specs.ArchX32 {
			foreign.Architectures = append(foreign.Architectures, a.spec)
		}
	}
	enosys := defaultProfile(t)
	nosys := uint(unix.ENOSYS)
	enosys.DefaultErrnoRet = &nosys
	flags := withRules(t)
	flags.Flags = []specs.LinuxSeccompFlag{specs.LinuxSeccompFlagLog, specs.LinuxSeccompFlagSpecAllow, "SECCOMP_FILTER_FLAG_TSYNC"}
	return map[string]*specs.LinuxSeccomp{
		"default":       defaultProfile(t),
		"rules":         withRules(t),
		"ENOSYS":        enosys,
		"flags":         flags,
		"architectures": foreign,
		"default allow": {DefaultAction: specs.ActAllow, Flags: []specs.LinuxSeccompFlag{}, Syscalls: []specs.LinuxSyscall{
			{Names: []string{"mount", "umount2"}, Action: specs.ActErrno},
			{Names: []string{"personality"}, Action: specs.ActErrno, Args: []specs.LinuxSeccompArg{{Index: 0, Value: 8, Op: specs.OpEqualTo}}},
		}},
		"default log": {DefaultAction: specs.ActLog, Syscalls: []specs.LinuxSyscall{{Names: []string{"read"}, Action: specs.ActAllow}}},
		"no rules":    {DefaultAction: specs.ActAllow},
	}
}

func filtered(p *specs.LinuxSeccomp) option {
	return func(_ *wire.RunRequest, spec *specs.Spec) { spec.Linux.Seccomp = p }
}

// The filter of containers and execs was compiled in the executor. It equals the one that
// libseccomp would have made in their first process, and has the profile's flags.
func TestFilterIsLibseccomps(t *testing.T) {
	n := start(t)
	for name, p := range testProfiles(t) {
		t.Run(name, func(t *testing.T) {
			profile, err := specconv.SetupSeccomp(p)
			if err != nil {
				t.Fatal(err)
			}
			want, wantLog := reference(t, profile)
			b := n.run([]string{"sleep", "for-ever"}, filtered(p))
			check := func(what string, pid int) {
				t.Helper()
				got, log := kernelFilter(t, pid)
				sameVerdicts(t, what, profile, want, got)
				if log != wantLog {
					t.Errorf("%s: the filter logs: %v, libseccomp's: %v", what, log, wantLog)
				}
			}
			check("container", b.reply.Pid)
			check("exec", execSleep(t, b))
			if name == "rules" {
				n.upgrade()
				check("exec after an upgrade", execSleep(t, b))
			}
		})
	}
	unfiltered(t, n)
}

// execSleep returns the PID of an exec, once its program runs. Until then it is
// libcontainer's child, and the kernel forgets a tracer's request to stop when the child
// calls execve.
func execSleep(t *testing.T, b *box) int {
	t.Helper()
	e := b.exec(wire.ExecRequest{Process: process("print", "runs", "sleep", "for-ever")})
	if said := line(t, e.files["stdout"]); said != "runs\n" {
		t.Fatalf("the exec said %q", said)
	}
	return e.Pid
}

// unfiltered checks that the executor has not loaded any of the filters that it compiled
// itself.
func unfiltered(t *testing.T, n *node) {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", n.cmd.Process.Pid))
	if err != nil || len(tasks) == 0 {
		t.Fatalf("threads of the executor: %v", err)
	}
	for _, path := range tasks {
		if status, err := os.ReadFile(path); err == nil && !strings.Contains(string(status), "\nSeccomp:\t0\n") {
			t.Errorf("%s: the executor is filtered:\n%s", path, status)
		}
	}
}

// A filter with the action SCMP_ACT_NOTIFY, of a container or an exec, is handed to the
// profile's listener and asks it.
func TestFilterNotifies(t *testing.T) {
	n := start(t)
	p := defaultProfile(t)
	p.ListenerPath, p.ListenerMetadata = filepath.Join(n.dir, "listener.sock"), "of the test"
	for i := range p.Syscalls {
		p.Syscalls[i].Names = slices.DeleteFunc(p.Syscalls[i].Names, func(s string) bool { return strings.HasPrefix(s, "mkdir") })
	}
	p.Syscalls = append(p.Syscalls, specs.LinuxSyscall{Names: []string{"mkdirat"}, Action: specs.ActNotify})
	profile, err := specconv.SetupSeccomp(p)
	if err != nil {
		t.Fatal(err)
	}
	want, _ := reference(t, profile)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: p.ListenerPath, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	b := n.run([]string{"sleep", "for-ever"}, filtered(p))
	state, listener := accept(t, l)
	if state.Metadata != p.ListenerMetadata || state.State.ID != b.id {
		t.Errorf("the listener got the state %+v", state)
	}
	listener.Close()
	got, _ := kernelFilter(t, b.reply.Pid)
	sameVerdicts(t, "container", profile, want, got)

	e := b.exec(wire.ExecRequest{Process: process("deep", "1", "made")})
	state, listener = accept(t, l)
	defer listener.Close()
	if state.Pid != e.Pid {
		t.Errorf("the listener got process %d, the exec is %d", state.Pid, e.Pid)
	}
	if call := answer(t, listener, unix.EXDEV); call != unix.SYS_MKDIRAT {
		t.Errorf("it was asked about system call %d", call)
	}
	if e.wait() == 0 {
		t.Error("the call that the listener refused succeeded")
	}
	if testenv.Exists(filepath.Join(b.root, "made")) {
		t.Error("the directory that the listener refused was made")
	}
	unfiltered(t, n)
}

// accept takes the descriptor of a filter from the executor.
func accept(t *testing.T, l *net.UnixListener) (state specs.ContainerProcessState, listener *os.File) {
	t.Helper()
	l.SetDeadline(time.Now().Add(time.Minute))
	c, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	data, control := make([]byte, 1<<16), make([]byte, 256)
	length, got, _, _, err := c.ReadMsgUnix(data, control)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data[:length], &state); err != nil {
		t.Fatal(err)
	}
	messages, err := syscall.ParseSocketControlMessage(control[:got])
	if err != nil || len(messages) != 1 {
		t.Fatalf("%d control messages, %v", len(messages), err)
	}
	fds, err := syscall.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 || !slices.Equal(state.Fds, []string{specs.SeccompFdName}) {
		t.Fatalf("descriptors %v, named %v: %v", fds, state.Fds, err)
	}
	return state, os.NewFile(uintptr(fds[0]), "listener")
}

// answer waits for a filter's notification, answers with errno, and returns the system
// call's number.
func answer(t *testing.T, listener *os.File, errno unix.Errno) (number int32) {
	t.Helper()
	fds := []unix.PollFd{{Fd: int32(listener.Fd()), Events: unix.POLLIN}}
	if n, err := unix.Poll(fds, 60_000); n != 1 {
		t.Fatalf("no notification: %v", err)
	}
	var notification struct { // struct seccomp_notif
		id         uint64
		pid, flags uint32
		number     int32
		_          [60]byte
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, listener.Fd(), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&notification))); errno != 0 {
		t.Fatal(errno)
	}
	response := struct { // struct seccomp_notif_resp
		id    uint64
		value int64
		error int32
		flags uint32
	}{id: notification.id, error: -int32(errno)}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, listener.Fd(), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&response))); errno != 0 {
		t.Fatal(errno)
	}
	return notification.number
}
