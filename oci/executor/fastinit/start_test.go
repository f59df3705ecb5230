package fastinit

import (
	"os"
	"testing"

	"github.com/crisp-cri/crisp/test/testenv"
)

// The thread that makes the templates is never the main one, which would stay in their mount
// namespace: /proc/self would show that as ours.
func TestTemplatesLeaveTheMainThread(t *testing.T) {
	testenv.NeedRoot(t, "it makes mount namespaces")
	before, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		s, err := New()
		if err != nil {
			t.Fatal(err)
		}
		s.template.Close()
		s.visible.Close()
		if after, err := os.Readlink("/proc/self/ns/mnt"); err != nil || after != before {
			t.Fatalf("the main thread is in %s (%v), and was in %s", after, err, before)
		}
	}
}
