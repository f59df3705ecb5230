package executor_test

import (
	"os"
	"path/filepath"
	"testing"
)

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
