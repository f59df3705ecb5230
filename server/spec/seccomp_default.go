package spec

import (
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// DefaultSeccomp returns the built-in profile for a container with the given capabilities
// (CAP_…) on the given architecture (as runtime.GOARCH).
//
// System calls that are not listed fail with EPERM. The listed ones are needed by ordinary
// programs and cannot reach past the container's namespaces; some come with the capability that
// the kernel requires anyway. Without CAP_SYS_ADMIN a clone that creates namespaces is refused;
// clone3 has its flags in memory, where no filter can see them, so it returns ENOSYS and C
// libraries fall back to clone.
func DefaultSeccomp(caps []string, arch string) *specs.LinuxSeccomp {
	eperm, enosys := uint(unix.EPERM), uint(unix.ENOSYS)
	p := &specs.LinuxSeccomp{
		DefaultAction:   specs.ActErrno,
		DefaultErrnoRet: &eperm,
		Architectures:   slices.Clone(seccompArch[arch]),
	}
	names := strings.Fields(syscallsAlways + " " + syscallsOfArch[arch])
	for _, c := range capabilitySyscalls {
		if slices.Contains(caps, c.capability) {
			names = append(names, strings.Fields(c.names)...)
		}
	}
	slices.Sort(names)
	allow := func(args []specs.LinuxSeccompArg, names ...string) {
		p.Syscalls = append(p.Syscalls, specs.LinuxSyscall{Names: names, Action: specs.ActAllow, Args: args})
	}
	allow(nil, slices.Compact(names)...)

	for _, persona := range personalities {
		allow([]specs.LinuxSeccompArg{{Index: 0, Value: persona, Op: specs.OpEqualTo}}, "personality")
	}
	for _, f := range socketFamilies {
		allow([]specs.LinuxSeccompArg{{Index: 0, Value: f.mask, ValueTwo: f.value, Op: specs.OpMaskedEqual}}, "socket")
	}

	if !slices.Contains(caps, "CAP_SYS_ADMIN") {
		// On s390 clone's first two arguments are swapped (clone(2)).
		var flags uint
		if arch == "s390x" {
			flags = 1
		}
		allow([]specs.LinuxSeccompArg{{Index: flags, Value: namespaceFlags, ValueTwo: 0, Op: specs.OpMaskedEqual}}, "clone")
		p.Syscalls = append(p.Syscalls, specs.LinuxSyscall{Names: []string{"clone3"}, Action: specs.ActErrno, ErrnoRet: &enosys})
	}
	return p
}

// namespaceFlags are the flags of clone(2) that create namespaces.
const namespaceFlags = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// socketFamilies are the permitted address families of socket(2), as masks of its first argument
// and the remaining values: all below 48 (Linux 6.18 has 46) except two. AF_ALG, 38, is the
// kernel's cryptography; it belongs to no namespace and is the way into the page cache of
// CVE-2026-31431. AF_VSOCK, 40, does not belong to a network namespace either, and reaches the
// hypervisor. The kernel uses 32 bits of the register, so a comparison of all 64 could be evaded
// by setting the others.
//
// A 32-bit program can reach both through socketcall(2), whose arguments are in memory. Most
// such programs create all their sockets with it, so it cannot be refused; our AppArmor profile
// refuses AF_ALG where there is AppArmor.
var socketFamilies = []struct{ mask, value uint64 }{
	{0xffffffe0, 0},  // 0 to 31
	{0xfffffffc, 32}, // 32 to 35
	{0xfffffffe, 36}, // 36, 37
	{0xffffffff, 39},
	{0xffffffff, 41},
	{0xfffffffe, 42}, // 42, 43
	{0xfffffffc, 44}, // 44 to 47
}

// personalities are the execution domains of personality(2) that a program may
// choose: PER_LINUX, PER_LINUX32, both with UNAME26, and the query.
var personalities = []uint64{0, 0x0008, 0x20000, 0x20008, 0xffffffff}

// seccompArch lists the architectures whose programs a kernel can run, its own first.
var seccompArch = map[string][]specs.Arch{
	"amd64":   {specs.ArchX86_64, specs.ArchX86, specs.ArchX32},
	"arm64":   {specs.ArchAARCH64, specs.ArchARM},
	"ppc64le": {specs.ArchPPC64LE},
	"riscv64": {specs.ArchRISCV64},
	"s390x":   {specs.ArchS390X, specs.ArchS390},
}

// capabilitySyscalls are permitted with the capability. A call permitted by two capabilities is
// listed with both.
var capabilitySyscalls = []struct{ capability, names string }{
	{"CAP_BPF", "bpf"},
	{"CAP_DAC_READ_SEARCH", "open_by_handle_at"},
	{"CAP_PERFMON", "perf_event_open"},
	{"CAP_SYSLOG", "syslog"},
	{"CAP_SYS_ADMIN", `bpf clone clone3 fanotify_init fsconfig fsmount fsopen fspick lookup_dcookie mount mount_setattr
		move_mount open_tree perf_event_open quotactl quotactl_fd setdomainname sethostname setns syslog umount umount2 unshare`},
	{"CAP_SYS_BOOT", "reboot"},
	{"CAP_SYS_CHROOT", "chroot"},
	{"CAP_SYS_MODULE", "delete_module finit_module init_module"},
	{"CAP_SYS_NICE", "get_mempolicy mbind set_mempolicy set_mempolicy_home_node"},
	{"CAP_SYS_PACCT", "acct"},
	{"CAP_SYS_PTRACE", "kcmp pidfd_getfd process_madvise"},
	{"CAP_SYS_RAWIO", "ioperm iopl"},
	{"CAP_SYS_TIME", "clock_settime clock_settime64 settimeofday stime"},
	{"CAP_SYS_TTY_CONFIG", "vhangup"},
}

// syscallsOfArch exist on one architecture, or on its 32-bit sibling.
var syscallsOfArch = map[string]string{
	"amd64":   "arch_prctl modify_ldt",
	"arm64":   "arm_fadvise64_64 arm_sync_file_range breakpoint cacheflush set_tls sync_file_range2",
	"ppc64le": "swapcontext sync_file_range2",
	"riscv64": "riscv_flush_icache riscv_hwprobe",
	"s390x":   "s390_pci_mmio_read s390_pci_mmio_write s390_runtime_instr",
}

// syscallsAlways are always permitted. ptrace and process_vm_* are safe since the kernel checks
// seccomp again after a tracer's change (Linux 4.8).
const syscallsAlways = `
	access cachestat chdir chmod chown chown32 close close_range copy_file_range creat dup dup2 dup3 faccessat faccessat2
	fadvise64 fadvise64_64 fallocate fchdir fchmod fchmodat fchmodat2 fchown fchown32 fchownat fcntl fcntl64 fdatasync
	fgetxattr flistxattr flock fremovexattr fsetxattr fstat fstat64 fstatat64 fstatfs fstatfs64 fsync ftruncate ftruncate64
	futimesat getcwd getdents getdents64 getxattr getxattrat ioctl lchown lchown32 lgetxattr link linkat listmount listxattr
	listxattrat llistxattr lremovexattr lseek _llseek lsetxattr lstat lstat64 mkdir mkdirat mknod mknodat name_to_handle_at
	newfstatat open openat openat2 pread64 preadv preadv2 pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv
	removexattr removexattrat rename renameat renameat2 rmdir sendfile sendfile64 setxattr setxattrat splice stat stat64
	statfs statfs64 statmount statx symlink symlinkat sync sync_file_range syncfs tee truncate truncate64 umask unlink
	unlinkat utime utimensat utimensat_time64 utimes vmsplice write writev

	epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd eventfd2
	fanotify_mark inotify_add_watch inotify_init inotify_init1 inotify_rm_watch io_cancel io_destroy io_getevents
	io_pgetevents io_pgetevents_time64 io_setup io_submit pipe pipe2 poll ppoll ppoll_time64 pselect6 pselect6_time64 select
	_newselect signalfd signalfd4

	accept accept4 bind connect getpeername getsockname getsockopt listen recv recvfrom recvmmsg recvmmsg_time64 recvmsg send
	sendmmsg sendmsg sendto setsockopt shutdown socketcall socketpair

	brk madvise map_shadow_stack membarrier memfd_create memfd_secret mincore mlock mlock2 mlockall mmap mmap2 mprotect
	mremap mseal msync munlock munlockall munmap pkey_alloc pkey_free pkey_mprotect process_mrelease remap_file_pages

	ipc mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedreceive_time64 mq_timedsend mq_timedsend_time64 mq_unlink
	msgctl msgget msgrcv msgsnd semctl semget semop semtimedop semtimedop_time64 shmat shmctl shmdt shmget

	futex futex_requeue futex_time64 futex_wait futex_waitv futex_wake get_robust_list rseq set_robust_list

	execve execveat exit exit_group fork get_thread_area getcpu getpgid getpgrp getpid getppid getpriority getrusage getsid
	gettid ioprio_get ioprio_set kill pause pidfd_open pidfd_send_signal prctl process_vm_readv process_vm_writev ptrace
	restart_syscall sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam
	sched_getscheduler sched_rr_get_interval sched_rr_get_interval_time64 sched_setaffinity sched_setattr sched_setparam
	sched_setscheduler sched_yield set_thread_area set_tid_address setpgid setpriority setsid tgkill tkill uretprobe vfork
	wait4 waitid waitpid

	rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait
	rt_sigtimedwait_time64 rt_tgsigqueueinfo sigaltstack sigprocmask sigreturn

	capget capset getegid getegid32 geteuid geteuid32 getgid getgid32 getgroups getgroups32 getresgid getresgid32 getresuid
	getresuid32 getuid getuid32 setfsgid setfsgid32 setfsuid setfsuid32 setgid setgid32 setgroups setgroups32 setregid
	setregid32 setresgid setresgid32 setresuid setresuid32 setreuid setreuid32 setuid setuid32

	landlock_add_rule landlock_create_ruleset landlock_restrict_self lsm_get_self_attr lsm_list_modules lsm_set_self_attr
	seccomp

	adjtimex alarm clock_adjtime clock_adjtime64 clock_getres clock_getres_time64 clock_gettime clock_gettime64
	clock_nanosleep clock_nanosleep_time64 getitimer gettimeofday nanosleep setitimer time timer_create timer_delete
	timer_getoverrun timer_gettime timer_gettime64 timer_settime timer_settime64 timerfd_create timerfd_gettime
	timerfd_gettime64 timerfd_settime timerfd_settime64 times

	getrandom getrlimit prlimit64 setrlimit sysinfo ugetrlimit uname`
