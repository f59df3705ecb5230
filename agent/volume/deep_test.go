package volume

import (
	"testing"

	"github.com/crisp-cri/crisp/test/treetest"
)

// A pod may not hide what it writes from its sizeLimit by nesting directories deeper
// than a path can name.
func TestUsageOfDeepEmptyDir(t *testing.T) {
	dir := treetest.Dir(t)
	const deep = 5000
	treetest.Deep(t, dir, "d", deep)
	if _, inodes := Usage(dir); inodes != 2*deep+1 {
		t.Errorf("%d inodes are said to be used, want %d", inodes, 2*deep+1)
	}
}
