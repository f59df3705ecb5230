package executor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/oci/wire"
)

// systemd removes a scope with its last process, and with it the count of its OOM kills. An
// executor that reads too late still detects a kill: here it is stopped meanwhile, and the test
// removes the cgroup as systemd would.
func TestCgroupGoneBeforeItIsRead(t *testing.T) {
	if os.Getuid() == 0 {
		f, err := os.Open("/dev/kmsg")
		if err != nil {
			t.Skipf("needs the kernel's log: %v", err)
		}
		f.Close()
	}
	for _, c := range []struct {
		name string
		do   []string
		oom  bool
	}{
		{"killed for memory", []string{"eat", "200"}, true},
		{"a child killed for memory", []string{"run", "/testbin", "eat", "200"}, true},
		{"killed by itself", []string{"kill", "9"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := start(t)
			// The kernel's log also has the names of earlier runs.
			name := fmt.Sprintf("gone-%d", time.Now().UnixNano())
			b := n.run(append([]string{"await", "/tmp/go"}, c.do...), withMemory(32<<20), func(_ *wire.RunRequest, s *specs.Spec) {
				s.Linux.CgroupsPath = n.cgroup + "/" + name
			})
			n.cmd.Process.Signal(unix.SIGSTOP)
			defer n.cmd.Process.Signal(unix.SIGCONT)
			hasState(t, n.cmd.Process.Pid, "T")
			if err := os.WriteFile(filepath.Join(b.root, "tmp", "go"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			hasState(t, b.reply.Pid, "Z")
			for _, dir := range b.reply.Cgroups {
				eventually(t, func() bool {
					err := unix.Rmdir(dir)
					return err == nil || err == unix.ENOENT || filepath.Base(dir) != name
				}, "cgroup %s cannot be removed", dir)
			}
			n.cmd.Process.Signal(unix.SIGCONT)
			if e := b.wait(); e.OOMKilled != c.oom || (e.Reason == wire.ReasonOOMKilled) != c.oom {
				t.Errorf("exit is %+v", e)
			}
			if c.oom {
				b.reportsOOM()
			}
			b.delete()
		})
	}
}

// hasState waits until a process is in the state, as ps shows it.
func hasState(t *testing.T, pid int, state string) {
	t.Helper()
	eventually(t, func() bool {
		data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		_, after, _ := strings.Cut(string(data), ") ")
		return strings.HasPrefix(after, state)
	}, "process %d does not get to %s", pid, state)
}
