package executor_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/oci/wire"
	"github.com/crisp-cri/crisp/test/testenv"
)

// likeCRI makes a container like those that crispd requests.
func likeCRI(_ *wire.RunRequest, s *specs.Spec) {
	s.Mounts = append(s.Mounts,
		specs.Mount{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		specs.Mount{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		specs.Mount{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "relatime", "ro"}},
	)
	s.Linux.MaskedPaths = []string{"/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap", "/proc/kcore"}
	s.Linux.ReadonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
}

// restricted makes a container of the restricted level of the Pod Security Standards.
func restricted(req *wire.RunRequest, s *specs.Spec) {
	likeCRI(req, s)
	s.Root.Readonly = true
	s.Process.User = specs.User{UID: 1000, GID: 1001, AdditionalGids: []uint32{1002, 1003}}
	s.Process.Capabilities = &specs.LinuxCapabilities{}
	s.Process.NoNewPrivileges = true
	s.Linux.Seccomp = profileOf(specs.ActErrno, "")
}

// profileOf returns a profile with some rules; flag is one of SECCOMP_FILTER_FLAG_….
func profileOf(def specs.LinuxSeccompAction, flag specs.LinuxSeccompFlag) *specs.LinuxSeccomp {
	p := &specs.LinuxSeccomp{
		DefaultAction: def,
		Architectures: []specs.Arch{specs.ArchX86_64, specs.ArchX86, specs.ArchX32},
		Syscalls: []specs.LinuxSyscall{
			{Names: strings.Fields(commonCalls), Action: specs.ActAllow},
			{Names: []string{"personality"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{{Index: 0, Value: 8, Op: specs.OpEqualTo}}},
			{Names: []string{"socket"}, Action: specs.ActErrno, Args: []specs.LinuxSeccompArg{{Index: 0, Value: 40, Op: specs.OpGreaterThan}, {Index: 1, Value: 3, ValueTwo: 1, Op: specs.OpMaskedEqual}}},
		},
	}
	if flag != "" {
		p.Flags = []specs.LinuxSeccompFlag{flag}
	}
	if def == specs.ActAllow {
		p.Syscalls = p.Syscalls[1:]
		p.Syscalls[0].Action = specs.ActKillProcess
	}
	return p
}

// commonCalls are the system calls of a Go program, and those of libcontainer's init after
// it has loaded a filter.
const commonCalls = `fstatfs statfs capset setuid setgid setresuid setresgid setgroups chdir fchdir getcwd fchown fchownat openat2 statx stat lstat
	open access faccessat seccomp sendmsg recvmsg shutdown splice unlinkat fsopen fsconfig fsmount mount_setattr
	arch_prctl brk capget clock_gettime clone clone3 close dup dup3 epoll_create1 epoll_ctl epoll_pwait
	eventfd2 execve exit exit_group faccessat2 fcntl fstat futex getdents64 getpid getppid getrandom getrlimit gettid
	getuid ioctl kill lseek madvise mincore mmap mprotect munmap nanosleep newfstatat openat pipe2 poll prctl pread64 prlimit64
	read readlinkat restart_syscall rt_sigaction rt_sigprocmask rt_sigreturn sched_getaffinity sched_yield set_robust_list
	set_tid_address setrlimit sigaltstack tgkill timer_create timer_settime uname wait4 waitid write rseq writev membarrier close_range`

// variants has the containers in which a program must not be able to tell which init started it.
var variants = map[string]option{
	"plain":      func(*wire.RunRequest, *specs.Spec) {},
	"like CRI":   likeCRI,
	"restricted": restricted,
	"privileged": func(req *wire.RunRequest, s *specs.Spec) {
		likeCRI(req, s)
		s.Linux.MaskedPaths, s.Linux.ReadonlyPaths = nil, nil
		s.Process.NoNewPrivileges = false
		all := []string{"CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_SETPCAP", "CAP_MKNOD", "CAP_NET_BIND_SERVICE"}
		s.Process.Capabilities = &specs.LinuxCapabilities{Bounding: all, Effective: all, Permitted: all, Inheritable: all[:2], Ambient: all[:1]}
	},
	"filter without no_new_privs": func(req *wire.RunRequest, s *specs.Spec) {
		likeCRI(req, s)
		s.Process.NoNewPrivileges = false
		s.Linux.Seccomp = profileOf(specs.ActErrno, specs.LinuxSeccompFlagLog)
	},
	"filter that allows": func(req *wire.RunRequest, s *specs.Spec) {
		restricted(req, s)
		s.Linux.Seccomp = profileOf(specs.ActAllow, specs.LinuxSeccompFlagSpecAllow)
	},
	"limits": func(_ *wire.RunRequest, s *specs.Spec) {
		score := 500
		s.Process.OOMScoreAdj = &score
		s.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 100, Hard: 200}, {Type: "RLIMIT_CORE", Soft: 0, Hard: 0}}
		s.Process.Env = append(s.Process.Env, "A=1", "B=2", "A=3", "EMPTY=")
		s.Process.Cwd = "/made/for/it"
	},
	"volumes": func(req *wire.RunRequest, s *specs.Spec) {
		likeCRI(req, s)
		dir := filepath.Join(filepath.Dir(s.Root.Path), "volumes")
		must(os.MkdirAll(filepath.Join(dir, "a", "sub"), 0o750))
		must(os.WriteFile(filepath.Join(dir, "file"), []byte("x"), 0o640))
		must(os.Symlink("/inside", filepath.Join(s.Root.Path, "link")))
		must(os.Mkdir(filepath.Join(s.Root.Path, "inside"), 0o700))
		bind := func(source, dest string, options ...string) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: dest, Type: "bind", Source: filepath.Join(dir, source), Options: append([]string{"rbind"}, options...)})
		}
		bind("a", "/link/deep/er", "rprivate", "rw")
		bind("a", "/ro", "rprivate", "ro", "nosuid", "nodev", "noexec")
		bind("a", "/rro", "rprivate", "rro")
		bind("a", "/noatime", "rprivate", "rw", "noatime")
		bind("a", "/nodiratime", "rprivate", "rw", "nodiratime")
		bind("file", "/etc/file", "rprivate", "ro", "strictatime")
		bind("a", "/sys/fs", "rprivate")
		bind("a", "/slave", "slave")
		bind("a", "/rslave", "rslave", "ro")
		s.Mounts = append(s.Mounts, specs.Mount{Destination: "/run", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=1770", "size=1m", "ro"}})
		mode, owner := os.FileMode(0o640), uint32(12)
		s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/net/tap7", Type: "c", Major: 10, Minor: 200, FileMode: &mode, GID: &owner}}
	},
	"the devices of a directory": func(req *wire.RunRequest, s *specs.Spec) {
		likeCRI(req, s)
		dir := filepath.Join(filepath.Dir(s.Root.Path), "devices")
		for _, name := range []string{"pts", "shm", "mqueue"} {
			must(os.MkdirAll(filepath.Join(dir, name), 0o755))
		}
		null := filepath.Join(dir, "null")
		must(errors.Join(unix.Mknod(null, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))), os.Chmod(null, 0o666)))
		i := slices.IndexFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == "/dev" })
		s.Mounts[i] = specs.Mount{Destination: "/dev", Type: "bind", Source: dir, Options: []string{"bind", "rprivate"}}
		s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/net/tap7", Type: "c", Major: 10, Minor: 200}} // is not made
	},
	"the root read-only by a path": func(req *wire.RunRequest, s *specs.Spec) {
		likeCRI(req, s)
		s.Linux.ReadonlyPaths = append(s.Linux.ReadonlyPaths, "/")
	},
	"no HOME": func(req *wire.RunRequest, s *specs.Spec) {
		likeCRI(req, s)
		s.Process.Env = append(s.Process.Env, "HOME=/a", "HOME=", "A=b")
	},
	"terminal": func(req *wire.RunRequest, s *specs.Spec) {
		restricted(req, s)
		req.TTY = true
		s.Process.ConsoleSize = &specs.Box{Width: 90, Height: 30}
	},
	"read-only with a terminal": func(req *wire.RunRequest, s *specs.Spec) {
		likeCRI(req, s)
		req.TTY, s.Root.Readonly = true, true
	},
	"shared PID namespace": func(req *wire.RunRequest, s *specs.Spec) {
		likeCRI(req, s)
		sharedPIDs(req, s)
	},
}

// sharedPIDs puts a container into the executor's PID namespace.
func sharedPIDs(_ *wire.RunRequest, s *specs.Spec) {
	for i := range s.Linux.Namespaces {
		if s.Linux.Namespaces[i].Type == specs.PIDNamespace {
			s.Linux.Namespaces[i].Path = "/proc/self/ns/pid"
		}
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// startLogged starts an executor whose log failureOf reads.
func startLogged(t *testing.T) *node {
	t.Setenv(stderrEnv, filepath.Join(t.TempDir(), "stderr"))
	return start(t)
}

// by lets the fast init, or libcontainer alone, start a container.
func (n *node) by(fast bool) option {
	return func(r *wire.RunRequest, _ *specs.Spec) {
		r.Fast = fast
		if !cgroups.IsCgroup2UnifiedMode() {
			r.PrepareDir = filepath.Join(n.dir, "staged", r.ID)
		}
	}
}

// startedBy fails the test if it was not the fast init, or libcontainer, that started the container.
func (b *box) startedBy(fast bool) {
	b.t.Helper()
	if state, err := os.ReadFile(filepath.Join(b.dir, "executor", b.id, "state.json")); err != nil {
		b.t.Fatal(err)
	} else if fast != bytes.Contains(state, []byte("crisp.init=fast")) {
		b.t.Fatalf("the fast init was asked for: %v; it says %q", fast, failureOf(b.t, b.id))
	}
}

// A program cannot tell which init started it, as a container or as an exec.
func TestFastInitIsTheSame(t *testing.T) {
	n := startLogged(t)
	// The executor's own RLIMIT_MEMLOCK grows with the first container that has rules for
	// devices, on cgroup v2 before Linux 5.11.
	n.run([]string{"exit", "0"}, likeCRI)
	variants := maps.Clone(variants)
	variants["user namespace"] = inUserNamespace(t)
	variants["user namespace with volumes"] = func(req *wire.RunRequest, s *specs.Spec) {
		variants["user namespace"](req, s)
		dir := filepath.Join(filepath.Dir(s.Root.Path), "volumes")
		must(errors.Join(os.MkdirAll(filepath.Join(dir, "a", "sub"), 0o750), os.Chown(dir, mapped+7, mapped)))
		ids := []specs.LinuxIDMapping{{HostID: mapped, Size: 65536}}
		s.Mounts = append(s.Mounts,
			specs.Mount{Destination: "/inside", Type: "bind", Source: dir, Options: []string{"rbind", "rprivate"}},
			specs.Mount{Destination: "/run", Type: "bind", Source: filepath.Join(dir, "a"), Options: []string{"rbind", "rslave", "ro"}, UIDMappings: ids, GIDMappings: ids})
		s.Root.Readonly, req.TTY = false, true
	}
	if profile := confining(t); profile != "" {
		for _, name := range []string{"restricted", "user namespace", "terminal"} {
			option := variants[name]
			variants[name+" with AppArmor"] = func(req *wire.RunRequest, s *specs.Spec) {
				option(req, s)
				s.Process.ApparmorProfile = profile
			}
		}
	}
	if testenv.Lacks("selinux") == "" {
		for _, name := range []string{"restricted", "user namespace", "terminal"} {
			option := variants[name]
			variants[name+" with SELinux"] = func(req *wire.RunRequest, s *specs.Spec) { option(req, s); labelled(s) }
		}
	}
	for name, option := range variants {
		t.Run(name, func(t *testing.T) {
			n.sameInits(t, option)
		})
	}
}

// labelled gives a container SELinux labels, with a copy of the test binary that it may execute.
func labelled(s *specs.Spec) {
	s.Process.SelinuxLabel, s.Linux.MountLabel = "system_u:system_r:container_t:s0:c1,c2", "system_u:object_r:container_file_t:s0:c1,c2"
	s.Mounts = slices.DeleteFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == "/testbin" })
	program, err := os.ReadFile(programs.testbin)
	must(errors.Join(err, os.WriteFile(filepath.Join(s.Root.Path, "testbin"), program, 0o755)))
	must(filepath.WalkDir(s.Root.Path, func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, unix.Lsetxattr(path, "security.selinux", []byte("system_u:object_r:container_file_t:s0"), 0))
	}))
}

// confining loads an AppArmor profile that allows everything, and returns its name; "" = there is no AppArmor.
func confining(t *testing.T) string {
	if testenv.Lacks("apparmor") != "" {
		return ""
	}
	name := fmt.Sprintf("crisp-test-%d", os.Getpid())
	load := func(how string) {
		cmd := exec.Command("/usr/sbin/apparmor_parser", how)
		cmd.Stdin = strings.NewReader("profile " + name + " flags=(attach_disconnected,mediate_deleted) {\n  file,\n  capability,\n  network,\n  mount,\n  umount,\n  pivot_root,\n  signal,\n  ptrace,\n  unix,\n  dbus,\n}\n")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("apparmor_parser %s: %v\n%s", how, err, out)
		}
	}
	load("--replace")
	t.Cleanup(func() { load("--remove") })
	return name
}

// mapped is the host's ID of the root of inUserNamespace.
const mapped = 200000

// inUserNamespace returns an option for a restricted container in a user namespace, with others that
// belong to it.
func inUserNamespace(t testing.TB) option {
	t.Helper()
	own := withMappedIDs(t)
	return func(req *wire.RunRequest, s *specs.Spec) { restricted(req, s); own(req, s) }
}

// withMappedIDs returns an option that puts a container into a user namespace, after all options that
// make files.
func withMappedIDs(t testing.TB) option {
	t.Helper()
	cmd := exec.Command(programs.testbin, "sleep", "for-ever")
	ids := []syscall.SysProcIDMap{{HostID: mapped, Size: 65536}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true, Pdeathsig: unix.SIGKILL,
	}
	must(cmd.Start())
	pins := t.TempDir()
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	// As crispd's: where only the host's mount namespace has them.
	pinned := func(kind string) string {
		pin := filepath.Join(pins, kind)
		if _, err := os.Stat(pin); err == nil {
			return pin
		}
		must(os.WriteFile(pin, nil, 0o600))
		must(unix.Mount(fmt.Sprintf("/proc/%d/ns/%s", cmd.Process.Pid, kind), pin, "", unix.MS_BIND, ""))
		t.Cleanup(func() { must(unix.Unmount(pin, unix.MNT_DETACH)) })
		return pin
	}
	return func(_ *wire.RunRequest, s *specs.Spec) {
		s.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}}
		for name, kind := range map[string]specs.LinuxNamespaceType{"user": specs.UserNamespace, "net": specs.NetworkNamespace, "ipc": specs.IPCNamespace, "uts": specs.UTSNamespace} {
			s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: kind, Path: pinned(name)})
		}
		if cgroups.IsCgroup2UnifiedMode() { // as crispd's have one
			s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.CgroupNamespace})
		}
		for dir := filepath.Dir(s.Root.Path); dir != filepath.Clean(os.TempDir()) && dir != "/"; dir = filepath.Dir(dir) {
			must(os.Chmod(dir, 0o711)) // as crispd's directories are
		}
		must(filepath.WalkDir(s.Root.Path, func(path string, _ os.DirEntry, err error) error {
			return errors.Join(err, os.Lchown(path, mapped, mapped))
		}))
	}
}

var (
	readOnlySysfs = regexp.MustCompile(`^sysfs (\S+) ro\b`)

	anyNumber = regexp.MustCompile(`(master|shared|propagate_from):\d+`)
	anyBox    = regexp.MustCompile(`\bc\d+\b|exec-[0-9a-z]+-[0-9a-z]+`)
	anyInode  = regexp.MustCompile(`:\[\d+\]`)
)

func readLog(t testing.TB, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// factsOf describes everything by which a program, already running, could tell how it was
// started.
func factsOf(t *testing.T, pid int, n *node) []string {
	t.Helper()
	var facts []string
	add := func(format string, args ...any) {
		line := strings.ReplaceAll(fmt.Sprintf(format, args...), n.dir, "$DIR")
		facts = append(facts, anyBox.ReplaceAllString(line, "cN"))
	}
	proc := fmt.Sprintf("/proc/%d/", pid)
	file := func(name string) string {
		data, err := os.ReadFile(proc + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	for line := range strings.Lines(file("mountinfo")) {
		left, right, _ := strings.Cut(strings.TrimSpace(line), " - ")
		l := strings.Fields(left)
		right = readOnlySysfs.ReplaceAllString(right, "sysfs $1 rw") // see package fastinit
		add("mount %s of %s %v: %s", l[4], l[3], anyNumber.ReplaceAllString(fmt.Sprint(l[5:]), "$1:N"), right)
	}
	// Go's runtime blocks all signals of a thread while it starts another one.
	for range 1000 {
		if strings.Contains(file("status"), "SigBlk:\t0000000000000000\n") {
			break
		}
		time.Sleep(time.Millisecond)
	}
	keep := regexp.MustCompile(`^(Umask|Uid|Gid|Groups|SigBlk|SigIgn|Cap|NoNewPrivs|Seccomp|Speculation|Cpus_allowed|Mems_allowed)`)
	for line := range strings.Lines(file("status")) {
		if keep.MatchString(line) {
			add("status %s", strings.Join(strings.Fields(line), " "))
		} else if strings.HasPrefix(line, "NStgid") {
			add("is in %d PID namespaces", len(strings.Fields(line))-1)
		}
	}
	for _, name := range []string{"limits", "cgroup", "oom_score_adj", "environ", "cmdline", "coredump_filter", "personality", "loginuid", "timerslack_ns", "attr/current"} {
		if data, err := os.ReadFile(proc + name); err == nil {
			add("%s %q", name, data)
		}
	}
	for _, name := range []string{"cwd", "root", "exe"} {
		target, _ := os.Readlink(proc + name)
		add("%s %s", name, target)
	}
	fds, _ := os.ReadDir(proc + "fd")
	for _, fd := range fds {
		target, _ := os.Readlink(proc + "fd/" + fd.Name())
		if fd.Name() <= "2" { // the program has opened the rest
			var st unix.Stat_t
			must(unix.Stat(proc+"fd/"+fd.Name(), &st))
			flags, _, _ := strings.Cut(file("fdinfo/"+fd.Name()), "mnt_id")
			add("fd %s %s of %d, device %x, %q", fd.Name(), anyInode.ReplaceAllString(target, ""), st.Uid, st.Rdev, flags)
		}
	}
	for _, kind := range []string{"cgroup", "ipc", "mnt", "net", "pid", "uts", "user"} {
		mine, _ := os.Readlink("/proc/self/ns/" + kind)
		its, _ := os.Readlink(proc + "ns/" + kind)
		add("the %s namespace is ours: %v", kind, mine == its)
	}
	for _, dir := range []string{"", "dev", "dev/pts", "dev/net", "sys/fs/cgroup", "made", "inside", "inside/deep", "run", "etc"} {
		entries, _ := os.ReadDir(proc + "root/" + dir)
		for _, e := range entries {
			path := filepath.Join(proc, "root", dir, e.Name())
			var st unix.Stat_t
			must(unix.Lstat(path, &st))
			target, _ := os.Readlink(path)
			add("file %s %o %d:%d %x %s", filepath.Join(dir, e.Name()), st.Mode, st.Uid, st.Gid, st.Rdev, target)
		}
	}
	stat := strings.Fields(file("stat")[strings.LastIndex(file("stat"), ")"):])
	add("controlled by terminal %s, whose foreground is its group %v", stat[5], stat[6] == stat[3])
	session, pgrp := must1(unix.Getsid(pid)), must1(unix.Getpgid(pid))
	add("leads its session %v, its group %v", session == pid, pgrp == pid)
	add("nice %d", must1(unix.Getpriority(unix.PRIO_PROCESS, pid)))
	slices.Sort(facts)
	return facts
}

func must1(n int, err error) int { must(err); return n }

// The fast init reports what it cannot do and leaves nothing behind, and libcontainer takes over, but not
// for a program or a working directory that cannot be: a probe of such a one, once a second, would be
// started twice and logged each time.
func TestFastInitFailures(t *testing.T) {
	n := startLogged(t)
	for name, c := range map[string]struct {
		args   []string
		option option
		want   string
	}{
		"no program":     {nil, func(_ *wire.RunRequest, s *specs.Spec) { s.Process.Args = []string{"/none"} }, `exec: "/none": stat /none: no such file or directory`},
		"not in PATH":    {nil, func(_ *wire.RunRequest, s *specs.Spec) { s.Process.Args = []string{"none"} }, `exec: "none": executable file not found in $PATH`},
		"a directory":    {nil, func(_ *wire.RunRequest, s *specs.Spec) { s.Process.Args = []string{"/tmp"} }, `exec: "/tmp": is a directory`},
		"no right to it": {nil, func(_ *wire.RunRequest, s *specs.Spec) { s.Process.Args = []string{"/etc/passwd"}; passwd(s) }, `exec: "/etc/passwd": permission denied`},
		"no program at all": {nil, func(_ *wire.RunRequest, s *specs.Spec) {
			must(os.WriteFile(filepath.Join(s.Root.Path, "text"), []byte("text"), 0o755))
			s.Process.Args = []string{"/text"}
		}, `exec /text: exec format error`},
		"no source": {nil, func(_ *wire.RunRequest, s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/x", Type: "bind", Source: "/no/such", Options: []string{"rbind"}})
		}, `bind /no/such: no such file or directory`},
		"inside /proc": {nil, func(_ *wire.RunRequest, s *specs.Spec) {
			must(os.Symlink("proc/sys", filepath.Join(s.Root.Path, "door")))
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/door", Type: "bind", Source: "/tmp", Options: []string{"rbind"}})
		}, `mount /tmp at /door: it is inside /proc`},
		"the root": {nil, func(_ *wire.RunRequest, s *specs.Spec) {
			must(os.Symlink("/", filepath.Join(s.Root.Path, "door")))
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/door", Type: "bind", Source: "/tmp", Options: []string{"rbind"}})
		}, `it is the root directory`},
		"by a magic link": {nil, func(_ *wire.RunRequest, s *specs.Spec) {
			must(os.Symlink("/proc/self/fd/3", filepath.Join(s.Root.Path, "door")))
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/door/root", Type: "bind", Source: "/tmp", Options: []string{"rbind"}})
		}, `mount /tmp at /door/root: too many levels of symbolic links`},
		"/proc is a link": {nil, func(_ *wire.RunRequest, s *specs.Spec) {
			must(os.Remove(filepath.Join(s.Root.Path, "proc")))
			must(os.Symlink("tmp", filepath.Join(s.Root.Path, "proc")))
		}, `mount /proc: too many levels of symbolic links`},
		"links that lead nowhere": {nil, func(_ *wire.RunRequest, s *specs.Spec) {
			must(os.Symlink("run/not/there", filepath.Join(s.Root.Path, "door")))
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/door/x", Type: "bind", Source: "/tmp", Options: []string{"rbind"}})
		}, `mount /tmp at /door/x: no such file or directory`},
		"a file instead of new terminals": {nil, func(r *wire.RunRequest, s *specs.Spec) {
			r.TTY = true
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/dev/pts/ptmx", Type: "bind", Source: "/etc/hosts", Options: []string{"rbind"}})
		}, `set up a terminal: invalid cross-device link`},
		"working directory is a file":       {nil, func(_ *wire.RunRequest, s *specs.Spec) { passwd(s); s.Process.Cwd = "/etc/passwd" }, `chdir to cwd ("/etc/passwd") failed: not a directory`},
		"working directory by a magic link": {nil, func(_ *wire.RunRequest, s *specs.Spec) { s.Process.Cwd = "/proc/self/fd/3" }, `make working directory /proc/self/fd/3: too many levels of symbolic links`},
	} {
		t.Run(name, func(t *testing.T) {
			var b *box
			said := make(map[bool]string)
			for _, fast := range []bool{false, true} {
				b = n.request([]string{"sleep", "for-ever"}, c.option, func(r *wire.RunRequest, _ *specs.Spec) { r.Fast = fast })
				files, err := n.client.Call(t.Context(), wire.MethodRun, b.req, &b.reply)
				said[fast] = anyBox.ReplaceAllString(fmt.Sprint(err), "cN")
				if err == nil { // libcontainer can start it
					b.fds = files
					b.signal(unix.SIGKILL, false)
					b.wait()
					b.drop()
					b.delete()
				}
			}
			once := strings.HasPrefix(c.want, "exec") || strings.HasPrefix(c.want, "chdir")
			if said[true] != strings.Replace(said[false], "mkdir /etc/passwd", `chdir to cwd ("/etc/passwd") failed`, 1) {
				t.Errorf("the start ends with %q, and without the fast init with %q", said[true], said[false])
			}
			if got := failureOf(t, b.id); once != (got == "") {
				t.Errorf("libcontainer was tried after %q", got)
			} else if !strings.Contains(got+said[true], c.want) {
				t.Errorf("the fast init says %q, want %q in it", got+said[true], c.want)
			}
			again := n.request([]string{"exit", "3"}, func(r *wire.RunRequest, _ *specs.Spec) { r.ID, r.Fast = b.id, true })
			again.id = b.id
			again.fds = n.call(wire.MethodRun, again.req, &again.reply)
			t.Cleanup(again.drop)
			if code := again.wait().Code; code != 3 {
				t.Errorf("after it, the exit code is %d, want 3", code)
			}
			again.delete()
		})
	}
}

// failureOf returns why the fast init did not start a container, from the executor's log.
func failureOf(t testing.TB, id string) (failure string) {
	t.Helper()
	for line := range strings.Lines(readLog(t, os.Getenv(stderrEnv))) {
		var entry struct{ Msg, Container, Err string }
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Container == id && strings.HasPrefix(entry.Msg, "the fast init failed") {
			failure = entry.Err
		}
	}
	return failure
}

func passwd(s *specs.Spec) {
	must(os.MkdirAll(filepath.Join(s.Root.Path, "etc"), 0o755))
	must(os.WriteFile(filepath.Join(s.Root.Path, "etc", "passwd"), []byte("root:x:0:0:root:/home/root:/bin/sh\n"), 0o644))
}

// The fast init does not start a container that uses something unknown to it.
func TestFastInitLeaves(t *testing.T) {
	n := startLogged(t)
	bind := func(dest string, options ...string) option {
		return func(_ *wire.RunRequest, s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: dest, Type: "bind", Source: "/tmp", Options: append([]string{"rbind"}, options...)})
		}
	}
	for name, option := range map[string]option{
		"a volume that is private, unlike what is in it": bind("/x", "private"),
		"a read-only /dev":  func(_ *wire.RunRequest, s *specs.Spec) { s.Mounts[2].Options = append(s.Mounts[2].Options, "ro") },
		"a new host's name": func(_ *wire.RunRequest, s *specs.Spec) { s.Hostname = "name" },
		"a file in /proc": func(_ *wire.RunRequest, s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/proc/uptime", Type: "bind", Source: "/etc/hosts", Options: []string{"bind"}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := n.request([]string{"sleep", "for-ever"}, option, func(r *wire.RunRequest, _ *specs.Spec) { r.Fast = true })
			b.fds = n.call(wire.MethodRun, b.req, &b.reply)
			t.Cleanup(b.drop)
			state, err := os.ReadFile(filepath.Join(n.dir, "executor", b.id, "state.json"))
			if err != nil || bytes.Contains(state, []byte("crisp.init=fast")) {
				t.Errorf("the fast init has started the container, or its state is missing: %v", err)
			}
			if failure := failureOf(t, b.id); failure != "" {
				t.Errorf("the fast init has tried: %s", failure)
			}
		})
	}
}
