package executor_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/oci/wire"
)

// sameInits starts a container and an exec with either init, and compares them.
func (n *node) sameInits(t *testing.T, option option) {
	t.Helper()
	facts, execs := make(map[bool][]string), make(map[bool][]string)
	for _, fast := range []bool{false, true} {
		b := n.request([]string{"print", "up", "sleep", "for-ever"}, option, n.by(fast))
		// The root is a mount of its own, as crispd's are; libcontainer changes the
		// mount that it is on.
		must(unix.Mount(b.root, b.root, "", unix.MS_BIND, ""))
		t.Cleanup(func() { unix.Unmount(b.root, unix.MNT_DETACH) })
		b.fds = n.call(wire.MethodRun, b.req, &b.reply)
		t.Cleanup(b.drop)
		b.startedBy(fast)
		for deadline := time.Now().Add(2 * time.Minute); !strings.Contains(readLog(t, b.log), "up"); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the program has not started")
			}
		}
		facts[fast] = factsOf(t, b.reply.Pid, n)

		spec := *b.req.Spec.Process
		spec.Args = []string{"/testbin", "print", "up", "sleep", "for-ever"}
		spec.Cwd = "/proc"
		process, err := json.Marshal(spec)
		must(err)
		var reply wire.ExecReply
		files := n.call(wire.MethodExec, wire.ExecRequest{ID: b.id, Process: process, Fast: fast, TTY: b.req.TTY}, &reply)
		t.Cleanup(func() { wire.CloseAll(files) })
		if i := slices.IndexFunc(files, func(f *os.File) bool { return f.Name() == wire.FDStdout || f.Name() == wire.FDPTY }); i < 0 {
			t.Fatalf("an exec came with %v", files)
		} else if _, err := files[i].Read(make([]byte, 1)); err != nil {
			t.Fatalf("the exec's program has not started: %v", err)
		}
		execs[fast] = factsOf(t, reply.Pid, n)
		n.call(wire.MethodExecKill, wire.ExecRef{ExecID: reply.ExecID}, nil)
		b.signal(unix.SIGKILL, false)
		b.wait()
		b.delete()
	}
	if diff := cmp.Diff(facts[false], facts[true]); diff != "" {
		t.Errorf("the container differs (-libcontainer +fast init):\n%s", diff)
	}
	if diff := cmp.Diff(execs[false], execs[true]); diff != "" {
		t.Errorf("the exec differs (-libcontainer +fast init):\n%s", diff)
	}
	if len(facts[true]) < 60 {
		t.Errorf("only %d facts: %v", len(facts[true]), facts[true])
	}
}

// A trait is a part of a container's configuration, with what it may be.
type trait struct {
	name   string
	values []value
}

type value struct {
	name string
	set  option
}

// traits are crossed with one another. The last one sees all files that the others have made.
func traits(t *testing.T) []trait {
	own := withMappedIDs(t)
	user := func(u specs.User) option { return func(_ *wire.RunRequest, s *specs.Spec) { s.Process.User = u } }
	caps := func(names ...string) option {
		return func(_ *wire.RunRequest, s *specs.Spec) {
			s.Process.Capabilities = &specs.LinuxCapabilities{Bounding: names, Permitted: names, Effective: names[:len(names)/2], Inheritable: names[len(names)/2:], Ambient: names[len(names)/2:]}
		}
	}
	env := func(list ...string) option {
		return func(_ *wire.RunRequest, s *specs.Spec) { s.Process.Env = append(s.Process.Env, list...) }
	}
	limit := func(list ...specs.POSIXRlimit) option {
		return func(_ *wire.RunRequest, s *specs.Spec) { s.Process.Rlimits = list }
	}
	paths := func(masked, readonly []string) option {
		return func(_ *wire.RunRequest, s *specs.Spec) {
			s.Linux.MaskedPaths, s.Linux.ReadonlyPaths = masked, readonly
		}
	}
	return []trait{
		{"user", []value{{"root", nil}, {"1000", user(specs.User{UID: 1000, GID: 1001})}, {"groups", user(specs.User{UID: 7, AdditionalGids: []uint32{0, 9, 9, 1 << 15}})}, {"root's group", user(specs.User{UID: 65534})}}},
		{"capabilities", []value{{"some", nil}, {"none", func(_ *wire.RunRequest, s *specs.Spec) { s.Process.Capabilities = &specs.LinuxCapabilities{} }},
			{"many", caps("CAP_SYS_ADMIN", "CAP_SETPCAP", "CAP_NET_ADMIN", "CAP_MKNOD")}, {"one", caps("CAP_NET_BIND_SERVICE")}}},
		{"new privileges", []value{{"no", nil}, {"yes", func(_ *wire.RunRequest, s *specs.Spec) { s.Process.NoNewPrivileges = false }}}},
		{"seccomp", []value{{"none", nil}, {"errno", func(_ *wire.RunRequest, s *specs.Spec) { s.Linux.Seccomp = profileOf(specs.ActErrno, "") }},
			{"logs", func(_ *wire.RunRequest, s *specs.Spec) {
				s.Linux.Seccomp = profileOf(specs.ActErrno, specs.LinuxSeccompFlagLog)
			}},
			{"allows", func(_ *wire.RunRequest, s *specs.Spec) {
				s.Linux.Seccomp = profileOf(specs.ActAllow, specs.LinuxSeccompFlagSpecAllow)
			}}}},
		{"root", []value{{"writable", nil}, {"read-only", func(_ *wire.RunRequest, s *specs.Spec) { s.Root.Readonly = true }}}},
		{"stdio", []value{{"pipes", nil}, {"terminal", func(r *wire.RunRequest, _ *specs.Spec) { r.TTY = true }},
			{"sized terminal", func(r *wire.RunRequest, s *specs.Spec) {
				r.TTY, s.Process.ConsoleSize = true, &specs.Box{Width: 1, Height: 2}
			}},
			{"stdin", func(r *wire.RunRequest, _ *specs.Spec) { r.Stdin = true }}}},
		{"limits", []value{{"none", nil}, {"files", limit(specs.POSIXRlimit{Type: "RLIMIT_NOFILE", Soft: 100, Hard: 200})},
			{"three", limit(specs.POSIXRlimit{Type: "RLIMIT_CORE"}, specs.POSIXRlimit{Type: "RLIMIT_STACK", Soft: 1 << 22, Hard: 1 << 23}, specs.POSIXRlimit{Type: "RLIMIT_NPROC", Soft: 5000, Hard: 5000})}}},
		{"environment", []value{{"short", nil}, {"twice", env("A=1", "B=", "A=2", "HOME=/h")}, {"no HOME", env("HOME=/x", "HOME=")}, {"long", env("L=" + strings.Repeat("é", 50000))}}},
		{"directory", []value{{"root", nil}, {"made", func(_ *wire.RunRequest, s *specs.Spec) { s.Process.Cwd = "/made/for/it" }},
			{"dots", func(_ *wire.RunRequest, s *specs.Spec) { s.Process.Cwd = "/tmp/../proc/./sys" }}}},
		{"paths", []value{{"none", nil}, {"of CRI", paths([]string{"/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/scsi", "/sys/firmware"}, []string{"/proc/bus", "/proc/sys", "/proc/sysrq-trigger"})},
			{"odd", paths([]string{"/proc/keys", "/proc//keys", "/none", "/tmp", "/proc/scsi/"}, []string{"/", "/none", "/tmp"})}}},
		{"kernel's mounts", []value{{"few", nil}, {"of CRI", func(r *wire.RunRequest, s *specs.Spec) {
			kept := *s.Linux
			likeCRI(r, s)
			s.Linux.MaskedPaths, s.Linux.ReadonlyPaths = kept.MaskedPaths, kept.ReadonlyPaths
		}}, {"sysfs", func(_ *wire.RunRequest, s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/sys", Type: "sysfs", Source: "x", Options: []string{"nosuid", "noexec", "nodev"}})
		}}}},
		{"volumes", []value{{"none", nil}, {"of the host", volumes}, {"in memory", func(_ *wire.RunRequest, s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/run/a/b", Type: "tmpfs", Source: "tmpfs", Options: []string{"noexec", "mode=1770", "size=64k"}},
				specs.Mount{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=1m"}})
		}}}},
		{"score", []value{{"0", nil}, {"900", func(_ *wire.RunRequest, s *specs.Spec) { score := 900; s.Process.OOMScoreAdj = &score }}}},
		{"PIDs", []value{{"own", nil}, {"shared", sharedPIDs}}},
		{"devices", []value{{"none", nil}, {"two", func(_ *wire.RunRequest, s *specs.Spec) {
			mode, owner := os.FileMode(0o604), uint32(12)
			s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/net/tap7", Type: "c", Major: 10, Minor: 200, FileMode: &mode, GID: &owner}, {Path: "/dev/x", Type: "c", Major: 1, Minor: 9, UID: &owner}}
		}}}},
		{"users", []value{{"the host's", nil}, {"own", func(r *wire.RunRequest, s *specs.Spec) {
			s.Linux.Devices = nil // it could only bind the host's
			own(r, s)
		}}}},
	}
}

// volumes are directories and a file of the host.
func volumes(_ *wire.RunRequest, s *specs.Spec) {
	dir := filepath.Join(filepath.Dir(s.Root.Path), "volumes")
	must(os.MkdirAll(filepath.Join(dir, "a", "sub"), 0o755))
	must(os.WriteFile(filepath.Join(dir, "file"), []byte("x"), 0o644))
	must(os.Symlink("../inside", filepath.Join(s.Root.Path, "tmp", "link")))
	must(os.Mkdir(filepath.Join(s.Root.Path, "inside"), 0o755))
	for dest, options := range map[string][]string{"/tmp/link/deep": {"rprivate", "ro"}, "/rro": {"rprivate", "rro"}, "/etc/file": {"rslave", "ro", "nodev"}, "/x/y": {"slave", "noexec"}} {
		source := "a"
		if dest == "/etc/file" {
			source = "file"
		}
		s.Mounts = append(s.Mounts, specs.Mount{Destination: dest, Type: "bind", Source: filepath.Join(dir, source), Options: append([]string{"rbind"}, options...)})
	}
	slices.SortFunc(s.Mounts, func(a, b specs.Mount) int { return strings.Compare(a.Destination, b.Destination) })
}

// crossed returns configurations, each with a value for every trait, in which any two values of two traits
// come together at least once.
func crossed(list []trait, random *rand.Rand) (all [][]int) {
	type pair struct{ a, va, b, vb int }
	left := make(map[pair]bool)
	for a := range list {
		for b := a + 1; b < len(list); b++ {
			for va := range list[a].values {
				for vb := range list[b].values {
					left[pair{a, va, b, vb}] = true
				}
			}
		}
	}
	pairs := func(c []int, f func(pair)) {
		for a := range c {
			for b := a + 1; b < len(c); b++ {
				f(pair{a, c[a], b, c[b]})
			}
		}
	}
	for len(left) > 0 {
		var best []int
		most := 0
		for range 100 {
			c, news := make([]int, len(list)), 0
			for i := range c {
				c[i] = random.IntN(len(list[i].values))
			}
			pairs(c, func(p pair) {
				if left[p] {
					news++
				}
			})
			if news > most {
				best, most = c, news
			}
		}
		pairs(best, func(p pair) { delete(left, p) })
		if best != nil {
			all = append(all, best)
		}
	}
	return all
}

// sameInitsEnv makes TestInitsAreTheSame compare more: "full" compares 202 configurations.
const sameInitsEnv = "CRISP_SAME_INITS"

// A program cannot tell which init started it, whatever comes together in its container.
func TestInitsAreTheSame(t *testing.T) {
	n := startLogged(t)
	n.run([]string{"exit", "0"}, likeCRI) // see TestFastInitIsTheSame
	list := traits(t)
	random := rand.New(rand.NewPCG(35, 0))
	all := crossed(list, random)
	for full := os.Getenv(sameInitsEnv) == "full"; full && len(all) < 202; {
		c := make([]int, len(list))
		for i := range c {
			c[i] = random.IntN(len(list[i].values))
		}
		all = append(all, c)
	}
	t.Logf("%d configurations", len(all))
	for i, c := range all {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			var names []string
			n.sameInits(t, func(r *wire.RunRequest, s *specs.Spec) {
				names = nil
				for i, v := range c {
					v := list[i].values[v]
					if names = append(names, list[i].name+": "+v.name); v.set != nil {
						v.set(r, s)
					}
				}
			})
			if t.Failed() {
				t.Log(strings.Join(names, ", "))
			}
		})
	}
}
