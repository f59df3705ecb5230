package runtime

// #include <stdlib.h>
// #ifdef __GLIBC__
// #include <malloc.h>
// #endif
// static void trim(void) {
// #ifdef __GLIBC__
// 	malloc_trim(0);
// #endif
// }
import "C"

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"sync"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"
	libseccomp "github.com/seccomp/libseccomp-golang"
	cbpf "golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/oci/executor/fastinit"
)

// maxProfiles bounds the number of seccomp profiles kept.
const maxProfiles = 64

// A sharedProfile is a seccomp profile in each of its forms. It is most of a container's configuration,
// and nearly always the same: containers share it, which saves memory, and the tenth of a start's CPU
// time that it takes to decode, convert and encode.
type sharedProfile struct { // which nothing changes
	text   string // spec in JSON; "" = the profile was not decoded by Profile
	spec   *specs.LinuxSeccomp
	config *configs.Seccomp
	state  []byte // config in JSON

	mu      sync.Mutex       // held while it is compiled
	program *fastinit.Filter // guarded by mu
}

// shared returns the profile for which is reports true; nil = there is none.
func (b *builtins) shared(is func(*sharedProfile) bool) *sharedProfile {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.IndexFunc(b.profiles, is); i >= 0 {
		return b.profiles[i]
	}
	return nil
}

// share completes p, adds it, and returns the config of all that are the same.
func (b *builtins) share(p *sharedProfile) *configs.Seccomp {
	var err error
	if p.state, err = json.Marshal(p.config); err != nil || p.config == nil {
		return p.config
	}
	if same := b.shared(func(q *sharedProfile) bool { return bytes.Equal(q.state, p.state) }); same != nil {
		p.config = same.config
		if p.text == "" || p.text == same.text {
			return p.config
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.profiles) >= maxProfiles {
		b.profiles = nil
	}
	b.profiles = append(b.profiles, p)
	return p.config
}

// Profile decodes a specification's profile.
func (r *Runtimes) Profile(text []byte) (*specs.LinuxSeccomp, error) {
	b := r.builtins
	if known := b.shared(func(p *sharedProfile) bool { return p.text == string(text) }); known != nil {
		return known.spec, nil
	}
	var spec *specs.LinuxSeccomp
	if err := json.Unmarshal(text, &spec); err != nil {
		return nil, err
	}
	if config, err := specconv.SetupSeccomp(spec); err == nil { // else whoever converts it will say why
		b.share(&sharedProfile{text: string(text), spec: spec, config: config})
	}
	return spec, nil
}

// profileOf converts a profile for libcontainer.
func (b *builtins) profileOf(spec *specs.LinuxSeccomp) (*configs.Seccomp, error) {
	if known := b.shared(func(p *sharedProfile) bool { return spec != nil && p.spec == spec }); known != nil {
		return known.config, nil
	}
	config, err := specconv.SetupSeccomp(spec)
	return b.share(&sharedProfile{config: config}), err
}

// encode returns a container's state in JSON.
func (b *builtins) encode(s libcontainer.State) ([]byte, error) {
	known := b.shared(func(p *sharedProfile) bool { return p.config == s.Config.Seccomp })
	if known == nil {
		return json.Marshal(s)
	}
	s.Config.Seccomp = nil
	data, err := json.Marshal(s)
	const begin = `"config":{`
	return bytes.Replace(data, []byte(begin), slices.Concat([]byte(begin+`"seccomp":`), known.state, []byte(",")), 1), err
}

// load loads a handle of a container from libcontainer's state. It may be kept while the
// container runs (borrow), so its profile is shared with other containers too.
func (b *builtins) load(id string) (*libcontainer.Container, error) {
	lc, err := libcontainer.Load(b.root, id)
	if err != nil {
		return nil, err
	}
	if own := lc.Config().Seccomp; own != nil {
		if same := b.share(&sharedProfile{config: own}); same != own { // else others may read it already
			*own = *same
		}
	}
	return lc, nil
}

// filterOf returns the program of a shared profile; nil means none. libcontainer's children compile a
// profile each time, which takes 8 to 15 ms. The error is fastinit.ErrUnsupported if libcontainer has
// to load it, or to say why that is not possible.
func (b *builtins) filterOf(profile *configs.Seccomp) (_ *fastinit.Filter, err error) {
	if profile == nil {
		return nil, nil
	}
	find := func(c *configs.Seccomp) *sharedProfile { // of which c may be a copy
		return b.shared(func(p *sharedProfile) bool {
			return p.config == c || len(c.Syscalls) > 0 && len(p.config.Syscalls) > 0 && c.Syscalls[0] == p.config.Syscalls[0]
		})
	}
	p := find(profile)
	if p == nil { // there have been too many since
		p = cmp.Or(find(b.share(&sharedProfile{config: profile})), &sharedProfile{config: profile})
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.program == nil {
		if p.program, err = compile(p.config); err != nil {
			b.log.Warn("seccomp profile was left to libcontainer", "err", err)
			return nil, fastinit.ErrUnsupported
		}
	}
	return p.program, nil
}

// libcontainer compiles a profile with libseccomp and loads the program at once, without exposing it. So
// what a profile means is here once more: the same calls of libseccomp, and before its program, as with
// libcontainer, one that has system calls unknown to the profile fail with ENOSYS. Tests compare the
// verdicts with those of libcontainer's filters (TestFilterIsLibseccomps).

// compile returns the program of a profile that has no listener.
func compile(profile *configs.Seccomp) (*fastinit.Filter, error) {
	def, err := actionOf(profile.DefaultAction, profile.DefaultErrnoRet)
	if err != nil {
		return nil, fmt.Errorf("default action: %w", err)
	}
	out := &fastinit.Filter{}
	for _, f := range profile.Flags {
		flag, ok := filterFlags[f]
		if !ok {
			return nil, fmt.Errorf("unknown flag %q", f)
		}
		out.Flags |= flag
	}
	before, err := unknownCalls(profile)
	if err != nil {
		return nil, err
	}
	program, err := cbpf.Assemble(before)
	if err != nil {
		return nil, err
	}
	for _, i := range program {
		out.Program = binary.NativeEndian.AppendUint16(out.Program, i.Op)
		out.Program = binary.NativeEndian.AppendUint32(append(out.Program, i.Jt, i.Jf), i.K)
	}
	f, err := libseccomp.NewFilter(def)
	if err != nil {
		return nil, err
	}
	defer C.trim() // libseccomp takes a megabyte, and nothing else here needs the C library's memory
	defer f.Release()
	for _, name := range profile.Architectures {
		arch, err := libseccomp.GetArchFromString(name)
		if err == nil {
			err = f.AddArch(arch)
		}
		if err != nil {
			return nil, fmt.Errorf("architecture %q: %w", name, err)
		}
	}
	if len(profile.Syscalls) > 32 {
		_ = f.SetOptimize(2) // a tree; an old libseccomp has none
	}
	for _, rule := range profile.Syscalls {
		if err := addRule(f, rule, def); err != nil {
			return nil, fmt.Errorf("rule for system call %q: %w", rule.Name, err)
		}
	}
	rest, err := export(f)
	if err != nil {
		return nil, err
	}
	out.Program = append(out.Program, rest...)
	if n := len(out.Program) / unix.SizeofSockFilter; n > unix.BPF_MAXINSNS {
		return nil, fmt.Errorf("program has %d instructions", n)
	}
	return out, nil
}

// export returns libseccomp's program.
func export(f *libseccomp.ScmpFilter) ([]byte, error) {
	fd, err := unix.MemfdCreate("filter", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	file := os.NewFile(uintptr(fd), "filter")
	defer file.Close()
	if err := f.ExportBPF(file); err != nil {
		return nil, err
	}
	program, err := io.ReadAll(io.NewSectionReader(file, 0, (unix.BPF_MAXINSNS+1)*unix.SizeofSockFilter))
	if err == nil && (len(program) == 0 || len(program)%unix.SizeofSockFilter != 0) {
		err = fmt.Errorf("libseccomp's program has %d bytes", len(program))
	}
	return program, err
}

// filterFlags are the flags of SECCOMP_SET_MODE_FILTER. A process with one thread has nothing to
// synchronize.
var filterFlags = map[specs.LinuxSeccompFlag]uint64{
	"SECCOMP_FILTER_FLAG_TSYNC":            0,
	specs.LinuxSeccompFlagLog:              unix.SECCOMP_FILTER_FLAG_LOG,
	specs.LinuxSeccompFlagSpecAllow:        unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW,
	specs.LinuxSeccompFlagWaitKillableRecv: unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV,
}

var filterActions = map[configs.Action]libseccomp.ScmpAction{
	configs.Kill: libseccomp.ActKillThread, configs.KillThread: libseccomp.ActKillThread, configs.KillProcess: libseccomp.ActKillProcess,
	configs.Errno: libseccomp.ActErrno, configs.Trap: libseccomp.ActTrap, configs.Trace: libseccomp.ActTrace,
	configs.Allow: libseccomp.ActAllow, configs.Log: libseccomp.ActLog,
}

// actionOf returns libseccomp's action; number is that of an error or for a tracer, nil for EPERM.
func actionOf(action configs.Action, number *uint) (libseccomp.ScmpAction, error) {
	a, ok := filterActions[action]
	switch {
	case !ok:
		return a, fmt.Errorf("unknown action %d", action)
	case action == configs.Errno || action == configs.Trace:
		code := int16(unix.EPERM)
		if number != nil {
			code = int16(*number)
		}
		a = a.SetReturnCode(code)
	}
	return a, nil
}

var filterOperators = map[configs.Operator]libseccomp.ScmpCompareOp{
	configs.EqualTo: libseccomp.CompareEqual, configs.NotEqualTo: libseccomp.CompareNotEqual,
	configs.GreaterThan: libseccomp.CompareGreater, configs.GreaterThanOrEqualTo: libseccomp.CompareGreaterEqual,
	configs.LessThan: libseccomp.CompareLess, configs.LessThanOrEqualTo: libseccomp.CompareLessOrEqual,
	configs.MaskEqualTo: libseccomp.CompareMaskedEqual,
}

// addRule adds a rule. One without effect, which libseccomp refuses, and one for a system call that it
// does not know are left out.
func addRule(f *libseccomp.ScmpFilter, rule *configs.Syscall, def libseccomp.ScmpAction) error {
	action, err := actionOf(rule.Action, rule.ErrnoRet)
	if err != nil || action == def {
		return err
	}
	if rule.Name == "" {
		return fmt.Errorf("it has no name")
	}
	number, err := libseccomp.GetSyscallFromName(rule.Name)
	if err != nil {
		return nil
	}
	if len(rule.Args) == 0 {
		return f.AddRule(number, action)
	}
	var all []libseccomp.ScmpCondition
	seen, again := make(map[uint]bool), false
	for _, arg := range rule.Args {
		op, ok := filterOperators[arg.Op]
		if !ok {
			return fmt.Errorf("unknown operator %d", arg.Op)
		}
		c, err := libseccomp.MakeCondition(arg.Index, op, arg.Value, arg.ValueTwo)
		if err != nil {
			return err
		}
		all = append(all, c)
		again = again || seen[arg.Index]
		seen[arg.Index] = true
	}
	if !again {
		return f.AddRuleConditional(number, action, all)
	}
	for _, c := range all { // two conditions on one argument: either suffices
		if err := f.AddRuleConditional(number, action, []libseccomp.ScmpCondition{c}); err != nil {
			return err
		}
	}
	return nil
}

// auditArches are the kernel's names of libseccomp's architectures. The system calls of x32 are
// those of AMD64 with a bit set.
var auditArches = map[libseccomp.ScmpArch]uint32{
	libseccomp.ArchX86: unix.AUDIT_ARCH_I386, libseccomp.ArchAMD64: unix.AUDIT_ARCH_X86_64, libseccomp.ArchX32: unix.AUDIT_ARCH_X86_64,
	libseccomp.ArchARM: unix.AUDIT_ARCH_ARM, libseccomp.ArchARM64: unix.AUDIT_ARCH_AARCH64,
	libseccomp.ArchMIPS: unix.AUDIT_ARCH_MIPS, libseccomp.ArchMIPS64: unix.AUDIT_ARCH_MIPS64, libseccomp.ArchMIPS64N32: unix.AUDIT_ARCH_MIPS64N32,
	libseccomp.ArchMIPSEL: unix.AUDIT_ARCH_MIPSEL, libseccomp.ArchMIPSEL64: unix.AUDIT_ARCH_MIPSEL64, libseccomp.ArchMIPSEL64N32: unix.AUDIT_ARCH_MIPSEL64N32,
	libseccomp.ArchPPC: unix.AUDIT_ARCH_PPC, libseccomp.ArchPPC64: unix.AUDIT_ARCH_PPC64, libseccomp.ArchPPC64LE: unix.AUDIT_ARCH_PPC64LE,
	libseccomp.ArchS390: unix.AUDIT_ARCH_S390, libseccomp.ArchS390X: unix.AUDIT_ARCH_S390X,
	libseccomp.ArchRISCV64: unix.AUDIT_ARCH_RISCV64, libseccomp.ArchLOONGARCH64: unix.AUDIT_ARCH_LOONGARCH64,
}

// x32Bit is in the numbers of x32's system calls.
const x32Bit = 1 << 30

// unknownCalls returns a program that has system calls with numbers above all of the profile's fail with
// ENOSYS, and goes on with what follows it for others: a program that finds a call missing tries an older
// one, and one that may not make a call gives up. It is empty if the profile allows what it does not
// name, or asks a tracer.
func unknownCalls(profile *configs.Seccomp) ([]cbpf.Instruction, error) {
	switch profile.DefaultAction {
	case configs.Allow, configs.Log, configs.Trace:
		return nil, nil
	}
	last, err := lastCalls(profile)
	if err != nil {
		return nil, err
	}
	var program []cbpf.Instruction
	for _, arch := range slices.Sorted(maps.Keys(last)) {
		check := []cbpf.Instruction{cbpf.LoadAbsolute{Off: 0, Size: 4}}
		switch arch {
		case libseccomp.ArchAMD64:
			check = append(check, cbpf.JumpIf{Cond: cbpf.JumpBitsSet, Val: x32Bit, SkipTrue: 2})
		case libseccomp.ArchX32:
			check = append(check, cbpf.JumpIf{Cond: cbpf.JumpBitsNotSet, Val: x32Bit, SkipTrue: 2})
		case libseccomp.ArchS390, libseccomp.ArchS390X: // 0 stands for calls that the kernel does not know
			check = append(check, cbpf.JumpIf{Cond: cbpf.JumpEqual, Val: 0, SkipTrue: 1})
		}
		check = append(check,
			cbpf.JumpIf{Cond: cbpf.JumpLessOrEqual, Val: uint32(last[arch]), SkipTrue: 1},
			cbpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)})
		program = append(program,
			cbpf.LoadAbsolute{Off: 4, Size: 4},
			cbpf.JumpIf{Cond: cbpf.JumpNotEqual, Val: auditArches[arch], SkipTrue: uint8(len(check))})
		program = append(program, check...)
	}
	return program, nil
}

// lastCalls returns the highest number of a profile's system calls, on each of its architectures that has
// any, and on our own.
func lastCalls(profile *configs.Seccomp) (map[libseccomp.ScmpArch]libseccomp.ScmpSyscall, error) {
	native, err := libseccomp.GetNativeArch()
	if err != nil {
		return nil, err
	}
	last := make(map[libseccomp.ScmpArch]libseccomp.ScmpSyscall)
	names := append(slices.Clip(profile.Architectures), "")
	for _, name := range names {
		arch := native
		if name != "" {
			if arch, err = libseccomp.GetArchFromString(name); err != nil {
				return nil, fmt.Errorf("architecture %q: %w", name, err)
			}
		}
		if arch == libseccomp.ArchNative {
			arch = native
		}
		if _, ok := auditArches[arch]; !ok {
			return nil, fmt.Errorf("unknown architecture %q", cmp.Or(name, "native"))
		}
		for _, rule := range profile.Syscalls {
			if n, err := libseccomp.GetSyscallFromNameByArch(rule.Name, arch); err == nil && n > last[arch] {
				last[arch] = n
			}
		}
	}
	return last, nil
}
