package criruntime

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/agent/podspec"
	"github.com/crisp-cri/crisp/internal/fault"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A variable comes from a file that an init container has written. A container cannot make the
// agent read another file, or wait.
func TestFileKeyRef(t *testing.T) {
	d, _, pod := record(t, "  volumes: [{name: v, emptyDir: {}}]\n  containers:\n  - name: a\n    image: i\n    env:\n    - {name: A, valueFrom: {fileKeyRef: {volumeName: v, path: dir/env, key: KEY}}}\n"+
		"    - {name: B, valueFrom: {fileKeyRef: {volumeName: v, path: dir/env, key: OTHER, optional: true}}}\n    - {name: C, value: \"$(A)!\"}\n")
	dir := d.volumes.EmptyDirs(pod)["v"]
	if err := os.MkdirAll(filepath.Join(dir, "dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "dir", "env")
	environment := func() (string, error) {
		c := &pod.Spec.Containers[0]
		refs, err := d.references(pod, c)
		if err != nil {
			return "", err
		}
		list, err := (&podspec.Input{Pod: pod}).Environment(c, refs)
		var words []string
		for _, kv := range list {
			words = append(words, kv.Key+"="+string(kv.Value))
		}
		return strings.Join(words, " "), err
	}
	if _, err := environment(); !errors.Is(err, fault.NotFound) {
		t.Errorf("without the file: %v", err)
	}
	if err := os.WriteFile(path, []byte("KEY='value'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := environment(); err != nil || got != "A=value C=value!" {
		t.Errorf("%q, %v", got, err)
	}
	outside := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(outside, []byte("KEY='secret'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, make := range map[string]func() error{
		"link":      func() error { return os.Symlink(outside, path) },
		"pipe":      func() error { return unix.Mkfifo(path, 0o600) },
		"directory": func() error { return os.Mkdir(path, 0o700) },
	} {
		if err := errors.Join(os.RemoveAll(path), make()); err != nil {
			t.Fatal(err)
		}
		if got, err := environment(); err == nil {
			t.Errorf("%s: %q", name, got)
		}
	}
	pod.Spec.Containers[0].Env = []v1.EnvVar{{Name: "A", ValueFrom: &v1.EnvVarSource{FileKeyRef: &v1.FileKeySelector{VolumeName: "v", Path: "absent", Key: "K", Optional: new(true)}}}}
	if got, err := environment(); err != nil || got != "" {
		t.Errorf("optional: %q, %v", got, err)
	}
}

// /etc/hosts and the file of terminationMessagePath exist before the container, and a rejected
// container leaves nothing.
func TestFilesOfContainer(t *testing.T) {
	d := driver(t)
	pod := read(t, "  securityContext: {runAsNonRoot: true}\n  containers: [{name: a, image: i}]\n")
	if err := d.makeFiles(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	in, err := d.input(pod)
	if err != nil {
		t.Fatal(err)
	}
	in.IPs = []string{"10.0.0.2"}
	messages := filepath.Join(d.files.Dir(string(pod.UID)), "containers", "a", "*")
	for _, test := range []struct {
		user int64
		want int
	}{{0, 0}, {7, 1}, {7, 2}} {
		c := &podspec.Container{Spec: &pod.Spec.Containers[0], Image: &cri.Image{Uid: &cri.Int64Value{Value: test.user}}}
		if _, err := d.containerConfig(in, c, nil); (err == nil) != (test.user != 0) {
			t.Errorf("user %d: %v", test.user, err)
		}
		if got, err := filepath.Glob(messages); err != nil || len(got) != test.want {
			t.Errorf("user %d: message files %q, want %d", test.user, got, test.want)
		}
	}
	if text, err := os.ReadFile(d.files.HostsFile(string(pod.UID))); err != nil || !strings.Contains(string(text), "10.0.0.2\tweb\n") {
		t.Errorf("hosts file: %q, %v", text, err)
	}
}
