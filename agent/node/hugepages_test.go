package node

import (
	"os"
	"path/filepath"
	"testing"
)

// Pools have the names by which pods request huge pages.
func TestHugePages(t *testing.T) {
	dir := t.TempDir()
	for pool, pages := range map[string]string{"hugepages-2048kB": "6\n", "hugepages-1048576kB": "0\n", "hugepages-64kB": "many\n", "free": "1\n"} {
		if err := os.Mkdir(filepath.Join(dir, pool), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, pool, "nr_hugepages"), []byte(pages), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got := hugePages(dir)
	small, large := got["hugepages-2Mi"], got["hugepages-1Gi"]
	if len(got) != 2 || small.String() != "12Mi" || !large.IsZero() {
		t.Errorf("got %v", got)
	}
	if got := hugePages(filepath.Join(dir, "none")); len(got) != 0 {
		t.Errorf("a kernel without them has %v", got)
	}
}
