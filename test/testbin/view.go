package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// view prints what a process sees of the kernel, one fact a line, "KIND VALUE".
func view() {
	viewMounts()
	viewStatus()
	viewFiles()
	viewDevices("/dev")
	for _, kv := range slices.Sorted(slices.Values(os.Environ())) {
		fmt.Printf("env %q\n", kv)
	}
	viewIDs()
	viewCalls()
}

// viewCalls prints what becomes of system calls that a filter or a lack of rights may forbid, and
// that do nothing otherwise.
func viewCalls() {
	const none = ^uintptr(0)
	self := uintptr(os.Getpid())
	for _, c := range []struct {
		name string
		nr   uintptr
		args [3]uintptr
	}{
		{"socket inet", unix.SYS_SOCKET, [3]uintptr{syscall.AF_INET, syscall.SOCK_STREAM}},
		{"socket raw", unix.SYS_SOCKET, [3]uintptr{syscall.AF_INET, syscall.SOCK_RAW, syscall.IPPROTO_ICMP}},
		{"socket packet", unix.SYS_SOCKET, [3]uintptr{syscall.AF_PACKET, syscall.SOCK_RAW}},
		{"socket alg", unix.SYS_SOCKET, [3]uintptr{38, syscall.SOCK_SEQPACKET}},
		{"socket vsock", unix.SYS_SOCKET, [3]uintptr{40, syscall.SOCK_STREAM}},
		{"personality", unix.SYS_PERSONALITY, [3]uintptr{0xffffffff}},
		{"keyctl", unix.SYS_KEYCTL, [3]uintptr{999}},
		{"add_key", unix.SYS_ADD_KEY, [3]uintptr{none, none, none}},
		{"bpf", unix.SYS_BPF, [3]uintptr{999}},
		{"userfaultfd", unix.SYS_USERFAULTFD, [3]uintptr{999}},
		{"perf_event_open", unix.SYS_PERF_EVENT_OPEN, [3]uintptr{none}},
		{"io_uring_setup", unix.SYS_IO_URING_SETUP, [3]uintptr{1, none}},
		{"clone3", unix.SYS_CLONE3, [3]uintptr{}},
		{"setns", unix.SYS_SETNS, [3]uintptr{none}},
		{"unshare", unix.SYS_UNSHARE, [3]uintptr{1}},
		{"mount", unix.SYS_MOUNT, [3]uintptr{none, none, none}},
		{"open_tree", unix.SYS_OPEN_TREE, [3]uintptr{none, none}},
		{"pivot_root", unix.SYS_PIVOT_ROOT, [3]uintptr{none, none}},
		{"reboot", unix.SYS_REBOOT, [3]uintptr{}},
		{"syslog", unix.SYS_SYSLOG, [3]uintptr{999}},
		{"clock_settime", unix.SYS_CLOCK_SETTIME, [3]uintptr{0, none}},
		{"kcmp", unix.SYS_KCMP, [3]uintptr{self, self, 999}},
		{"process_vm_readv", unix.SYS_PROCESS_VM_READV, [3]uintptr{self, 0, 0}},
		{"open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, [3]uintptr{none, none}},
		{"swapon", unix.SYS_SWAPON, [3]uintptr{none}},
		{"init_module", unix.SYS_INIT_MODULE, [3]uintptr{none}},
		{"sethostname", unix.SYS_SETHOSTNAME, [3]uintptr{none, none}},
		{"chroot", unix.SYS_CHROOT, [3]uintptr{none}},
		{"mbind", unix.SYS_MBIND, [3]uintptr{}},
		{"no such call", 9999, [3]uintptr{}},
	} {
		_, _, errno := unix.Syscall6(c.nr, c.args[0], c.args[1], c.args[2], 0, 0, 0)
		fmt.Println("call", c.name, errno)
	}
}

// viewMounts prints the mounts: point, root in their file system, options, propagation, type and
// the options of the file system.
func viewMounts() {
	for line := range lines("/proc/self/mountinfo") {
		before, after, _ := strings.Cut(line, " - ")
		f, of := strings.Fields(before), strings.Fields(after)
		if len(f) < 6 || len(of) < 3 {
			fatal("cannot parse " + line)
		}
		var spread []string
		for _, o := range f[6:] {
			name, _, _ := strings.Cut(o, ":")
			spread = append(spread, name)
		}
		fmt.Println("mount", f[4], "root="+f[3], f[5], "propagation="+strings.Join(spread, ","), of[0], of[2])
	}
}

// statusFields has the fields of proc_pid_status(5) that depend on how a process is started.
var statusFields = []string{
	"Umask", "Uid", "Gid", "Groups", "SigBlk", "SigIgn", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb",
	"NoNewPrivs", "Seccomp", "Seccomp_filters", "Cpus_allowed_list", "Mems_allowed_list", "CoreDumping", "THP_enabled",
}

func viewStatus() {
	for line := range lines("/proc/self/status") {
		name, value, _ := strings.Cut(line, ":")
		if slices.Contains(statusFields, name) {
			fmt.Println("status", name, strings.Join(strings.Fields(value), " "))
		}
	}
	for line := range lines("/proc/self/limits") {
		fmt.Println("limit", strings.Join(strings.Fields(line), " "))
	}
}

// viewFiles prints files of one line or a few, where they are there and can be read.
func viewFiles() {
	for _, name := range []string{
		"/proc/self/oom_score_adj", "/proc/self/cgroup", "/proc/self/uid_map", "/proc/self/gid_map", "/proc/self/setgroups",
		"/proc/self/personality", "/proc/self/coredump_filter", "/proc/self/attr/current",
		"/proc/sys/net/ipv4/ip_unprivileged_port_start", "/proc/sys/net/ipv4/ping_group_range",
		"/proc/sys/kernel/shm_rmid_forced", "/proc/sys/kernel/hostname", "/proc/sys/kernel/domainname",
		"/sys/fs/cgroup/cpu/cpu.shares", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us",
		"/sys/fs/cgroup/cpuset/cpuset.cpus", "/sys/fs/cgroup/cpuset/cpuset.mems",
		"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes",
		"/sys/fs/cgroup/hugetlb/hugetlb.2MB.limit_in_bytes", "/proc/sys/net/core/somaxconn",
		"/proc/sys/kernel/shmmni", "/proc/sys/fs/mqueue/msg_max",
		"/sys/fs/cgroup/pids/pids.max", "/sys/fs/cgroup/devices/devices.list",
		"/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/cpu.weight", "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.swap.max", "/sys/fs/cgroup/pids.max",
		"/etc/resolv.conf", "/etc/hostname",
	} {
		for line := range lines(name) {
			fmt.Println("file", name, line)
		}
	}
	for _, name := range []string{"/", "/dev", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/dev/shm", "/proc/kcore", "/proc/sys", "/sys/firmware"} {
		viewNode("stat", name)
	}
	for fd := range 10 {
		if to, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); err == nil && !strings.HasPrefix(to, "anon_inode:") && !strings.HasPrefix(to, "/sys/fs/cgroup") {
			fmt.Println("fd", fd, to)
		}
	}
}

func viewDevices(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		viewNode("dev", name)
		if e.IsDir() && !slices.Contains([]string{"/dev/pts", "/dev/shm", "/dev/mqueue"}, name) {
			viewDevices(name)
		}
	}
}

// viewNode prints the mode, the owner and the numbers of a file, or where a link leads.
func viewNode(kind, name string) {
	var st syscall.Stat_t
	if err := syscall.Lstat(name, &st); err != nil {
		fmt.Println(kind, name, err)
		return
	}
	to, _ := os.Readlink(name)
	fmt.Printf("%s %s %o %d:%d %d %s\n", kind, name, st.Mode, st.Uid, st.Gid, st.Rdev, to)
}

func viewIDs() {
	for _, kind := range []string{"cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"} {
		to, err := os.Readlink("/proc/self/ns/" + kind)
		fmt.Println("namespace", kind, to, err)
	}
	cwd, err := os.Getwd()
	fmt.Println("cwd", cwd, err)
	host, err := os.Hostname()
	fmt.Println("hostname", host, err)
	session, _, _ := syscall.Syscall(unix.SYS_GETSID, 0, 0, 0)
	fmt.Println("leads its session", int(session) == os.Getpid())
	fmt.Println("is first", os.Getpid() == 1)
	err = os.WriteFile("/written", nil, 0o644)
	fmt.Println("write /written", err)
}

// lines are those of a file; none if it cannot be read.
func lines(name string) func(func(string) bool) {
	data, _ := os.ReadFile(name)
	return func(yield func(string) bool) {
		for line := range strings.Lines(string(data)) {
			if !yield(strings.TrimSpace(line)) {
				return
			}
		}
	}
}
