package userns

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/test/testenv"
)

func TestTranslate(t *testing.T) {
	r := Range{Host: 1000, Length: 10}
	for id, want := range map[uint32]bool{0: true, 9: true, 10: false} {
		if got, ok := r.Translate(id); ok != want || got != 1000+id {
			t.Errorf("ID %d is %d, %v", id, got, ok)
		}
	}
}

func TestMake(t *testing.T) {
	testenv.NeedRoot(t, "it makes user namespaces")
	m := Map{UID: Range{200000, 65536}, GID: Range{300000, 65536}}
	var child string
	err := Make(m, unix.CLONE_NEWNET|unix.CLONE_NEWIPC, func(ns string) error {
		child = filepath.Dir(ns)
		for file, want := range map[string]string{"uid_map": "0 200000 65536", "gid_map": "0 300000 65536", "setgroups": "allow"} {
			b, err := os.ReadFile(filepath.Join(child, file))
			if got := strings.Join(strings.Fields(string(b)), " "); got != want {
				t.Errorf("%s is %q (%v), want %q", file, got, err, want)
			}
		}
		for _, kind := range []string{"user", "net", "ipc"} {
			ours, _ := os.Readlink("/proc/self/ns/" + kind)
			if theirs, err := os.Readlink(filepath.Join(ns, kind)); theirs == ours || err != nil {
				t.Errorf("%s namespace is ours (%v)", kind, err)
			}
		}
		return fmt.Errorf("stop")
	})
	if err == nil || err.Error() != "stop" {
		t.Errorf("got %v, want use's own error", err)
	}
	if _, err := os.Stat(child); !os.IsNotExist(err) {
		t.Errorf("the process is left: %v", err)
	}
}

func TestOpen(t *testing.T) {
	testenv.NeedRoot(t, "it makes user namespaces")
	f, err := Open(Map{UID: Range{200000, 1}, GID: Range{300000, 1}})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	kind, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_NSTYPE)
	if err != nil || kind != unix.CLONE_NEWUSER {
		t.Errorf("it is a namespace of type %#x, %v", kind, err)
	}
}
