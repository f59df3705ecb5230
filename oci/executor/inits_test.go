package executor_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
)

// What no container can have is refused by both inits, in libcontainer's words. An NRI plugin may ask for
// it; the fast init cut it off at the NUL byte, or passed it on.
func TestInitsRefuse(t *testing.T) {
	n := startLogged(t)
	for want, option := range map[string]option{
		"invalid environment variable: missing '='":                  func(_ *wire.RunRequest, s *specs.Spec) { s.Process.Env = []string{"A"} },
		"invalid environment variable: name cannot be empty":         func(_ *wire.RunRequest, s *specs.Spec) { s.Process.Env = []string{"=b"} },
		`invalid environment variable "A": contains nul byte (\x00)`: func(_ *wire.RunRequest, s *specs.Spec) { s.Process.Env = []string{"A=b\x00c"} },
		"\x00x: invalid argument":                                    func(_ *wire.RunRequest, s *specs.Spec) { s.Process.Args[0] = "/testbin\x00x" },
		"exec /testbin: invalid argument":                            func(_ *wire.RunRequest, s *specs.Spec) { s.Process.Args = append(s.Process.Args, "a\x00b") },
		"/tmp\x00: invalid argument":                                 func(_ *wire.RunRequest, s *specs.Spec) { s.Process.Cwd = "/tmp\x00" },
		"the root directory cannot be masked":                        func(_ *wire.RunRequest, s *specs.Spec) { s.Linux.MaskedPaths = []string{"/tmp/.."} },
		"container's /dev/null is invalid": func(_ *wire.RunRequest, s *specs.Spec) { // CVE-2025-31133
			s.Linux.MaskedPaths = nil
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/dev/null", Type: "bind", Source: "/dev/zero", Options: []string{"bind"}})
		},
	} {
		t.Run(want, func(t *testing.T) {
			for _, fast := range []bool{true, false} {
				b := n.request([]string{"sleep", "for-ever"}, likeCRI, n.by(fast), option)
				files, err := n.client.Call(t.Context(), wire.MethodRun, b.req, &b.reply)
				wire.CloseAll(files)
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("fast init %v: the start ends with %v", fast, err)
				}
			}
		})
	}
	b := n.run([]string{"sleep", "for-ever"}, likeCRI)
	process, err := json.Marshal(&specs.Process{Args: []string{"/testbin"}, Cwd: "/", Env: []string{"A"}, Capabilities: &specs.LinuxCapabilities{}})
	must(err)
	for _, fast := range []bool{true, false} {
		n.fails(fault.Invalid, wire.MethodExec, wire.ExecRequest{ID: b.id, Process: process, Fast: fast})
	}
}

// A volume at /dev/null is not opened before it is known to be null(4): merely to open a device, of a
// watchdog for example, can have effects.
func TestDevNullIsNotOpenedBlindly(t *testing.T) {
	n := startLogged(t)
	fifo := filepath.Join(n.dir, "fifo")
	must(unix.Mkfifo(fifo, 0o600))
	opened := watchOpens(t, []string{fifo})
	for _, fast := range []bool{true, false} {
		b := n.request([]string{"sleep", "for-ever"}, likeCRI, n.by(fast), func(_ *wire.RunRequest, s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/dev/null", Type: "bind", Source: fifo, Options: []string{"bind"}})
		})
		n.fails(nil, wire.MethodRun, b.req)
	}
	if n := opened(); n > 0 {
		t.Errorf("it was opened %d times", n)
	}
}

// A path that leads to the root directory makes that read-only, for the container and its execs alike.
// Libcontainer's mount over it bound only one of them.
func TestReadonlyRootByPath(t *testing.T) {
	n := startLogged(t)
	for _, path := range []string{"/", "/tmp/..", "/door"} {
		for _, fast := range []bool{true, false} {
			if path == "/door" && !fast {
				continue // libcontainer does not look where a link leads
			}
			b := n.run([]string{"write", "/written", "x"}, likeCRI, n.by(fast), func(_ *wire.RunRequest, s *specs.Spec) {
				must(os.Symlink("/", filepath.Join(s.Root.Path, "door")))
				s.Linux.ReadonlyPaths = append(s.Linux.ReadonlyPaths, path)
			})
			b.startedBy(fast)
			if e := b.wait(); e.Code != 125 || !strings.Contains(b.output("stderr"), "read-only file system") {
				t.Errorf("%s, fast init %v: ended with %d: %s", path, fast, e.Code, b.output("stderr"))
			}
			up := n.run([]string{"sleep", "for-ever"}, likeCRI, n.by(fast), func(_ *wire.RunRequest, s *specs.Spec) {
				must(os.Symlink("/", filepath.Join(s.Root.Path, "door")))
				s.Linux.ReadonlyPaths = append(s.Linux.ReadonlyPaths, path)
			})
			e := &execed{box: up}
			files := n.call(wire.MethodExec, wire.ExecRequest{ID: up.id, Process: process("write", "/written", "x"), Fast: fast}, &e.ExecReply)
			if code := e.wait(); code != 125 {
				t.Errorf("%s, fast init %v: the exec ended with %d", path, fast, code)
			}
			wire.CloseAll(files)
		}
	}
}

// The fast init needs no descriptor in its last step, and makes no call then that a profile may deny which
// lets containers of other runtimes start.
func TestFastInitNeedsLittle(t *testing.T) {
	n := startLogged(t)
	for name, option := range map[string]option{
		"few descriptors": func(_ *wire.RunRequest, s *specs.Spec) {
			s.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 8, Hard: 8}}
		},
		"a profile without close_range": func(_ *wire.RunRequest, s *specs.Spec) {
			s.Process.NoNewPrivileges = false
			s.Linux.Seccomp = profileOf(specs.ActAllow, "")
			s.Linux.Seccomp.Syscalls = append(s.Linux.Seccomp.Syscalls, specs.LinuxSyscall{Names: []string{"close_range", "openat2"}, Action: specs.ActErrno})
		},
	} {
		t.Run(name, func(t *testing.T) {
			var p specs.Process
			b := n.run([]string{"await", "/tmp/end"}, likeCRI, n.by(true), option, func(_ *wire.RunRequest, s *specs.Spec) { p = *s.Process })
			b.startedBy(true)
			p.Args = []string{"/testbin", "exit", "4"}
			process, err := json.Marshal(p)
			must(err)
			e := &execed{box: b}
			wire.CloseAll(n.call(wire.MethodExec, wire.ExecRequest{ID: b.id, Process: process, Fast: true}, &e.ExecReply))
			if code := e.wait(); code != 4 {
				t.Errorf("the exec ended with %d", code)
			}
			b.touch("tmp/end")
			if e := b.wait(); e.Code != 0 {
				t.Errorf("ended with %d: %s", e.Code, b.output("stderr"))
			}
			if failure := failureOf(t, b.id); failure != "" {
				t.Error(errors.New(failure))
			}
		})
	}
}
