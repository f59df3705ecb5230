package executor_test

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/oci/wire"
	"github.com/crisp-cri/crisp/test/testenv"
)

// A container cannot distinguish a prepared /dev and /sys/fs/cgroup from libcontainer's.
func TestPreparedMountsAreTheSame(t *testing.T) {
	testenv.Need(t, "!criu") // nothing is prepared where CRIU works
	n := start(t)
	shm := t.TempDir()
	full := func(_ *wire.RunRequest, s *specs.Spec) {
		mode, owner := os.FileMode(0o640), uint32(12)
		s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/net/tap7", Type: "c", Major: 10, Minor: 200, FileMode: &mode, GID: &owner}}
		s.Mounts = append(s.Mounts,
			specs.Mount{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"ro"}},
			specs.Mount{Destination: "/dev/shm", Type: "bind", Source: shm, Options: []string{"rbind", "rprivate", "nosuid", "noexec", "nodev", "rw"}},
			specs.Mount{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "relatime", "ro"}},
		)
	}
	prepared := filepath.Join(n.dir, "staged", "x")
	want := treesOf(t, n.run([]string{"sleep", "for-ever"}, full, func(r *wire.RunRequest, _ *specs.Spec) { r.Fast = false }).reply.Pid)
	var b *box
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		b = n.run([]string{"sleep", "for-ever"}, full, func(r *wire.RunRequest, _ *specs.Spec) { r.PrepareDir, r.Fast = prepared, false })
		state, err := os.ReadFile(filepath.Join(n.dir, "executor", b.id, "state.json"))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(state), prepared) {
			if v1 := !cgroups.IsCgroup2UnifiedMode(); v1 != strings.Contains(string(state), prepared+"/cgroup") {
				t.Errorf("cgroup v1 is %v, and the cgroups are prepared or not: %s", v1, state)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("nothing is prepared")
		}
	}
	got := treesOf(t, b.reply.Pid)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("prepared mounts differ (-libcontainer's +prepared):\n%s", diff)
	}
	if len(want) < 20 {
		t.Errorf("only %d entries: %v", len(want), want)
	}
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(prepared); err != nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s is still there", prepared)
		}
	}
}

var anyContainer = regexp.MustCompile(`\bc\d+\b`)

// treesOf describes the mounts, nodes and links below /dev and /sys/fs/cgroup.
func treesOf(t *testing.T, pid int) []string {
	t.Helper()
	var list []string
	f, err := os.Open(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// proc_pid_mountinfo(5): after the fifth field come the options, then
		// propagation up to the dash, then the type.
		left, right, _ := strings.Cut(lines.Text(), " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if strings.HasPrefix(l[4], "/dev") || strings.HasPrefix(l[4], "/sys") {
			list = append(list, fmt.Sprint("mount ", l[4], " ", l[5:], " ", r[0], " ", anyContainer.ReplaceAllString(r[2], "cN")))
		}
	}
	root := fmt.Sprintf("/proc/%d/root", pid)
	for _, dir := range []string{"/dev", "/sys/fs/cgroup"} {
		entries, err := filepath.Glob(root + dir + "/*")
		if err != nil {
			t.Fatal(err)
		}
		more, _ := filepath.Glob(root + dir + "/*/tap*")
		for _, path := range append(entries, more...) {
			var st unix.Stat_t
			if err := unix.Lstat(path, &st); err != nil {
				t.Fatal(err)
			}
			line := fmt.Sprintf("%s %o %d:%d %x", strings.TrimPrefix(path, root), st.Mode, st.Uid, st.Gid, st.Rdev)
			if st.Mode&uint32(unix.S_IFMT) == unix.S_IFLNK {
				target, err := os.Readlink(path)
				if err != nil {
					t.Fatal(err)
				}
				line += " " + target
			}
			list = append(list, line)
		}
	}
	slices.Sort(list)
	return list
}
