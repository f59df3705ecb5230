// Package kernel determines, once at startup, what this host's kernel supports and permits us to
// do. Nothing here changes the host, forks, or mounts where others see it.
//
// A feature is probed if there is a harmless way (the error for an invalid argument shows
// whether a system call exists), otherwise inferred from the kernel's version.
package kernel

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/userns"
)

// Features is the result of Probe. The version in a comment is the first Linux with
// that feature.
type Features struct {
	Release     string // uname -r
	Major       int
	Minor       int
	CgroupV2    bool     // the unified hierarchy is at /sys/fs/cgroup
	Controllers []string // cgroup controllers that can be used
	SwapLimit   bool     // swap can be limited
	CgroupKill  bool     // cgroup.kill, 5.14, v2 only

	Capabilities uint64 // bit n = capability n of capabilities(7): bounding and permitted
	OOMScoreAdj  int    // our own; without CAP_SYS_RESOURCE the lowest that we can set

	IDs       *userns.Map // of the user namespace that we are in; nil = the machine's first
	Bare      bool        // see Bare
	NoCgroups bool        // see NoCgroups

	Overlay     bool // overlayfs, loaded if needed
	RecursiveRO bool // mount_setattr(2), 5.12
	IDMap       bool // overlayfs on ID-mapped layers, 5.19
	UserNS      bool // user namespaces exist, and the administrator permits some
	Seccomp     bool // seccomp filters
	AppArmor    bool // enabled
	SELinux     bool // enabled
	NoNodes     bool // device nodes cannot be made: we are in a user namespace, or lack CAP_MKNOD
	PidfdInfo   bool // PIDFD_GET_INFO returns exit codes, 6.15
	Systemd     bool // systemd runs this host (sd_booted(3))
	IA32        bool // programs of 32-bit x86 run on this amd64 kernel
	X32         bool // programs of the x32 ABI do
}

// Probe needs no privileges; features that it may not see count as missing.
func Probe() Features {
	f := Features{IDs: userns.Own(), Bare: Bare(), NoCgroups: NoCgroups()}
	var uts unix.Utsname
	if unix.Uname(&uts) == nil {
		f.Release = unix.ByteSliceToString(uts.Release[:])
		f.Major, f.Minor = version(f.Release)
	}
	f.probeCgroups(cgroupRoot)
	f.Capabilities = capabilities(read("/proc/self/status"))
	f.OOMScoreAdj, _ = strconv.Atoi(strings.TrimSpace(read("/proc/self/oom_score_adj")))

	f.Overlay = hasOverlay()
	// An invalid descriptor: EBADF where the call exists, ENOSYS where it does not.
	f.RecursiveRO = unix.MountSetattr(-1, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}) != unix.ENOSYS
	f.UserNS = exists("/proc/self/ns/user") && Sysctl("user/max_user_namespaces") != "0"
	f.IDMap = f.RecursiveRO && f.UserNS && !f.Bare && f.AtLeast(5, 19)
	// A filter at address 0: EFAULT where filters exist, EINVAL where they do not.
	f.Seccomp = unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, 0, 0, 0) == unix.EFAULT
	f.AppArmor = strings.HasPrefix(read("/sys/module/apparmor/parameters/enabled"), "Y") && exists("/sys/kernel/security/apparmor")
	f.SELinux = exists("/sys/fs/selinux/enforce")
	f.NoNodes = !f.Can(unix.CAP_MKNOD)
	f.PidfdInfo = f.AtLeast(6, 15)
	f.Systemd = exists("/run/systemd/system")
	if f.Bare {
		f.AppArmor, f.SELinux, f.Systemd = false, false, false // the host's
	}
	f.probeABIs()
	return f
}

// AtLeast reports whether the kernel has that version or a newer one.
func (f Features) AtLeast(major, minor int) bool {
	return f.Major > major || (f.Major == major && f.Minor >= minor)
}

// Can reports whether we hold a capability (unix.CAP_…) and may give it to others. Some are worth
// nothing in a user namespace: the kernel asks for them in the first one.
func (f Features) Can(capability int) bool {
	if f.IDs != nil && (capability == unix.CAP_SYS_RESOURCE || capability == unix.CAP_MKNOD) {
		return false
	}
	return f.Capabilities&(1<<capability) != 0
}

// MinOOMScoreAdj returns the lowest oom_score_adj that we can set for a process:
// "CAP_SYS_RESOURCE … may be lowered" (proc_pid_oom_score_adj(5)).
func (f Features) MinOOMScoreAdj() int {
	if f.Can(unix.CAP_SYS_RESOURCE) {
		return -1000
	}
	return f.OOMScoreAdj
}

// version returns the two numbers that a release begins with.
func version(release string) (major, minor int) {
	a, rest, _ := strings.Cut(release, ".")
	b := rest
	if i := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' }); i >= 0 {
		b = rest[:i]
	}
	major, _ = strconv.Atoi(a)
	minor, _ = strconv.Atoi(b)
	return major, minor
}

// capabilities returns the capabilities that are both permitted and in the bounding
// set, from a proc_pid_status(5).
func capabilities(status string) uint64 {
	set := func(name string) uint64 {
		_, after, ok := strings.Cut(status, "\n"+name+":\t")
		if !ok {
			return 0
		}
		hex, _, _ := strings.Cut(after, "\n")
		n, _ := strconv.ParseUint(hex, 16, 64)
		return n
	}
	return set("CapPrm") & set("CapBnd")
}

// hasOverlay opens an overlayfs context, which loads the module if it is one (fsopen(2)); a host
// that forbids that may have it loaded already.
func hasOverlay() bool {
	if fd, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC); err == nil {
		unix.Close(fd)
		return true
	}
	return strings.Contains(read("/proc/filesystems"), "\toverlay\n")
}

// read returns a file's content, "" if it cannot be read.
func read(path string) string {
	b, _ := os.ReadFile(path)
	return string(b)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// x32Bit marks a system call of the x32 ABI (asm/unistd.h).
const x32Bit = 0x40000000

// probeABIs probes which other ABIs an amd64 kernel supports. It calls getpid(2) by the x32 ABI,
// which most kernels are built without; 32-bit programs run if a certain sysctl exists
// (Documentation/admin-guide/sysctl/abi).
func (f *Features) probeABIs() {
	if runtime.GOARCH != "amd64" {
		return
	}
	_, _, errno := unix.RawSyscall(x32Bit|unix.SYS_GETPID, 0, 0, 0)
	f.X32 = errno == 0
	f.IA32 = exists("/proc/sys/abi/vsyscall32")
}

// BootID returns the kernel's random ID of this boot (random(4)).
func BootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

// TotalMemory returns MemTotal of proc_meminfo(5) in bytes, 0 if it cannot be read.
func TotalMemory() int64 {
	for line := range strings.Lines(read("/proc/meminfo")) {
		var kib int64
		if n, err := fmt.Sscanf(line, "MemTotal: %d kB", &kib); n == 1 && err == nil {
			return kib << 10
		}
	}
	return 0
}
