package fastinit

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// The child runs before libc is set up: what it would call of libc could crash, which would only show as
// starts that libcontainer does, more slowly. See bare.h.
func TestChildIsBare(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("elsewhere the child runs after libc is set up")
	}
	cc := cmp.Or(os.Getenv("CC"), "gcc")
	for _, level := range []string{"-O0", "-Os", "-O2", "-O3"} {
		object := filepath.Join(t.TempDir(), "child.o")
		if out, err := exec.Command(cc, level, "-fno-stack-protector", "-fno-pic", "-c", "-o", object, "child.c").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		out, err := exec.Command("nm", "--undefined-only", object).Output()
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Fields(string(out)); strings.Join(got, " ") != "U _start" {
			t.Errorf("compiled with %s the child needs %q of libc", level, got)
		}
	}
}
