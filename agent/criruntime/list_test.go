package criruntime

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/crisp-cri/crisp/agent/podspec"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// On a node with a kubelet, the annotations of any pod can name the file of its status. Such a file
// must neither hang the administrator's "crisp get pods" nor fill its memory.
func TestKeptStatusOfAStrangersPod(t *testing.T) {
	const good = `{"hostIP":"192.0.2.1"}`
	for name, test := range map[string]struct {
		dir  string
		make func(path string) error
		want string
	}{
		"the agent's": {"u1", func(path string) error { return os.WriteFile(path, []byte(good), 0o600) }, "192.0.2.1"},
		"elsewhere":   {"d", func(path string) error { return os.WriteFile(path, []byte(good), 0o600) }, ""},
		"a pipe":      {"u1", func(path string) error { return unix.Mkfifo(path, 0o600) }, ""},
		"a link": {"u1", func(path string) error {
			os.WriteFile(path+".x", []byte(good), 0o600)
			return os.Symlink(path+".x", path)
		}, ""},
		"larger than it is": {"u1", func(path string) error { os.WriteFile(path, []byte(good), 0o600); return os.Truncate(path, 1<<40) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), test.dir)
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := test.make(filepath.Join(dir, "status.json")); err != nil {
				t.Fatal(err)
			}
			f := &Found{Pod: &v1.Pod{}}
			f.Pod.UID, f.Pod.Annotations = "u1", map[string]string{podspec.AnnotationDir: dir}
			f.explain()
			if got := f.Pod.Status.HostIP; got != test.want {
				t.Errorf("host IP is %q, want %q", got, test.want)
			}
		})
	}
}
