package executor_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
	"github.com/crisp-cri/crisp/test/testenv"
)

// limits returns the values that an update may change, by file name, from the files of v1
// or v2.
func (b *box) limits() map[string]string {
	b.t.Helper()
	files := []string{"memory.max", "memory.swap.max", "cpu.max", "cpu.weight", "pids.max"}
	if b.reply.Cgroups["memory"] != "" {
		files = []string{
			"memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us",
			"cpuset.cpus", "cpuset.mems", "pids.max",
		}
	}
	found := make(map[string]string)
	for _, file := range files {
		controller, _, _ := strings.Cut(file, ".")
		dir := b.reply.Cgroups[controller]
		if dir == "" {
			dir = b.reply.Cgroups[""]
		}
		if data, err := os.ReadFile(filepath.Join(dir, file)); err == nil {
			found[file] = strings.TrimSpace(string(data))
		}
	}
	if len(found) == 0 {
		b.t.Fatalf("no limit can be read in %v", b.reply.Cgroups)
	}
	return found
}

// When one limit is refused, the others of the update are undone, even those that had never
// been set before: no memory limit is left of an update whose CPU quota the kernel refuses.
func TestUpdateIsWholeOrNothing(t *testing.T) {
	n := start(t)
	b := n.run([]string{"sleep", "for-ever"})
	before, score := b.limits(), readScore(t, b.reply.Pid)
	refused := wire.UpdateRequest{
		ID: b.id, OOMScoreAdj: new(int),
		Resources: []byte(`{"memory":{"limit":67108864,"swap":67108864},"pids":{"limit":77},"cpu":{"shares":99,"quota":1,"period":100000}}`),
	}
	*refused.OOMScoreAdj = 700
	n.fails(fault.Invalid, wire.MethodUpdate, refused)
	if after := b.limits(); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("limits were %v, and after an update that was refused %v", before, after)
	}
	if got := readScore(t, b.reply.Pid); got != score {
		t.Errorf("oom_score_adj was %d, and after an update that was refused %d", score, got)
	}
	// Without the refused value the same update succeeds.
	n.call(wire.MethodUpdate, wire.UpdateRequest{
		ID: b.id, Resources: []byte(`{"memory":{"limit":67108864},"pids":{"limit":77},"cpu":{"quota":50000}}`),
	}, nil)
	after := b.limits()
	want := map[string]string{"memory.max": "67108864", "cpu.max": "50000 100000", "pids.max": "77"}
	if b.reply.Cgroups["memory"] != "" {
		want = map[string]string{"memory.limit_in_bytes": "67108864", "cpu.cfs_quota_us": "50000", "pids.max": "77"}
	}
	for file, limit := range want {
		if got := after[file]; got != limit {
			t.Errorf("%s is %q, want %s", file, got, limit)
		}
	}
}

// An update sets the score of all processes of the container, and of those started later.
func TestUpdateOOMScore(t *testing.T) {
	n := start(t)
	b := n.run([]string{"fork", "print", "up", "sleep", "for-ever"}, withHostPID)
	b.says("up")
	adj := 321
	n.call(wire.MethodUpdate, wire.UpdateRequest{ID: b.id, OOMScoreAdj: &adj}, nil)
	pids := b.processes() // once per hierarchy
	slices.Sort(pids)
	if pids = slices.Compact(pids); len(pids) != 2 {
		t.Fatalf("processes are %v, want the first and its child", pids)
	}
	for _, pid := range b.processes() {
		if got := readScore(t, pid); got != adj {
			t.Errorf("process %s has oom_score_adj %d, want %d", pid, got, adj)
		}
	}
	adj = 1001
	n.fails(fault.Invalid, wire.MethodUpdate, wire.UpdateRequest{ID: b.id, OOMScoreAdj: &adj})
	for _, pid := range b.processes() {
		if got := readScore(t, pid); got != 321 {
			t.Errorf("process %s has oom_score_adj %d after a change that was refused", pid, got)
		}
	}
}

// A memory limit below the current use is refused: the kernel would kill for it.
func TestUpdateBelowUse(t *testing.T) {
	n := start(t)
	b := n.run([]string{"eat", "40", "print", "fed", "sleep", "for-ever"}, withMemory(96<<20))
	before := b.limits()
	b.says("fed")
	err := n.fails(fault.WrongState, wire.MethodUpdate, wire.UpdateRequest{ID: b.id, Resources: []byte(`{"memory":{"limit":33554432}}`)})
	if err == nil || !strings.Contains(err.Error(), "33554432") {
		t.Errorf("error %v does not name the limit", err)
	}
	if after := b.limits(); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("limits were %v, and after an update that was refused %v", before, after)
	}
	n.call(wire.MethodUpdate, wire.UpdateRequest{ID: b.id, Resources: []byte(`{"memory":{"limit":67108864}}`)}, nil)
}

// What the caller cannot help is not called an invalid argument: the same update may succeed later.
// Nor is it when the container was taken out of its cgroup.
func TestUpdateFailsForOtherReasons(t *testing.T) {
	n := start(t)
	builtin := n.run([]string{"sleep", "for-ever"})
	all := []*box{builtin}
	if testenv.Exists("/usr/sbin/runc") {
		all = append(all, n.run([]string{"sleep", "for-ever"}, withEngine))
	}
	for _, b := range all {
		dir := b.reply.Cgroups["pids"]
		if dir == "" {
			dir = b.reply.Cgroups[""]
		}
		writable := readOnly(t, dir)
		n.fails(fault.Internal, wire.MethodUpdate, wire.UpdateRequest{ID: b.id, Resources: []byte(`{"pids":{"limit":77}}`)})
		writable()
		n.call(wire.MethodUpdate, wire.UpdateRequest{ID: b.id, Resources: []byte(`{"pids":{"limit":77}}`)}, nil)
	}
	for _, dir := range builtin.reply.Cgroups {
		root := strings.TrimSuffix(dir, n.cgroup+"/"+builtin.id)
		err := os.WriteFile(filepath.Join(root, "cgroup.procs"), []byte(strconv.Itoa(builtin.reply.Pid)), 0)
		if err := errors.Join(err, unix.Rmdir(dir)); err != nil {
			t.Fatal(err)
		}
	}
	n.fails(fault.WrongState, wire.MethodUpdate, wire.UpdateRequest{ID: builtin.id, Resources: []byte(`{"pids":{"limit":88}}`)})
}

// readOnly makes a cgroup read-only until the returned function is called.
func readOnly(t *testing.T, dir string) (undo func()) {
	t.Helper()
	undo = func() { unix.Unmount(dir, unix.MNT_DETACH) }
	t.Cleanup(undo)
	err := unix.Mount(dir, dir, "", unix.MS_BIND, "")
	if err == nil {
		err = unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
	}
	if err != nil {
		t.Fatal(err)
	}
	return undo
}

func readScore(t *testing.T, pid any) int {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%v/oom_score_adj", pid))
	if err != nil {
		t.Fatal(err)
	}
	score, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	return score
}
