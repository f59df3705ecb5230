package executor_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/oci/wire"
	"github.com/crisp-cri/crisp/test/testenv"
)

// A container that has ended has no cgroup any more, nor any below it: cAdvisor would report it
// beside the container that takes its place. The executor then removes it as before, also after an
// upgrade.
func TestEndRemovesCgroups(t *testing.T) {
	n := start(t)
	own := n.run([]string{"sleep", "for-ever"})
	host := n.run([]string{"fork", "sleep", "for-ever"}, withHostPID)
	child := host.exec(wire.ExecRequest{Process: process("fork", "print", "child", "sleep", "for-ever")})
	line(t, child.files["stdout"])
	adopted := n.run([]string{"sleep", "for-ever"})
	all := []*box{own, host, adopted}
	var eaten *box
	if own.reply.Cgroups["memory"] != "" { // on v2 the node may have no memory controller
		eaten = n.run([]string{"await", "/tmp/go", "eat", "200"}, withMemory(32<<20))
		all = append(all, eaten)
	}
	if testenv.Exists("/usr/sbin/runc") {
		all = append(all, n.run([]string{"sleep", "for-ever"}, withEngine))
	}
	for _, b := range all {
		for _, dir := range b.reply.Cgroups {
			if err := os.MkdirAll(filepath.Join(dir, "a", "b"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	n.crash(func() {})
	for _, b := range all {
		b.adopt()
		if b == eaten {
			b.touch("tmp/go")
		} else {
			b.signal(unix.SIGKILL, false)
		}
		if e := b.wait(); e.OOMKilled != (b == eaten) {
			t.Errorf("exit is %+v", e)
		}
		b.hasNoCgroup()
	}
	n.upgrade()
	for _, b := range all {
		b.delete()
	}
}

// hasNoCgroup checks that the container has cgroups in no hierarchy.
func (b *box) hasNoCgroup() {
	b.t.Helper()
	left := slices.DeleteFunc(slices.Collect(maps.Values(b.reply.Cgroups)), func(dir string) bool { return !testenv.Exists(dir) })
	if len(b.reply.Cgroups) == 0 || len(left) > 0 {
		b.t.Errorf("of the cgroups %v are left: %q", b.reply.Cgroups, left)
	}
}

// Cgroups made below those of a container, by itself or by others, are removed with it, in
// every hierarchy.
func TestDeleteWithCgroupsBelow(t *testing.T) {
	n := start(t)
	b := n.run([]string{"sleep", "for-ever"})
	b.signal(9, false)
	b.wait()
	var made []string
	for _, dir := range b.reply.Cgroups {
		below := filepath.Join(dir, "a", "b")
		if err := os.MkdirAll(below, 0o755); err != nil {
			t.Fatal(err)
		}
		made = append(made, dir)
	}
	if len(made) == 0 {
		t.Fatal("the container has no cgroups")
	}
	b.delete()
	for _, dir := range made {
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("%s is still there (err %v)", dir, err)
		}
	}
}
