package crix

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/internal/fault"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// Files of variables are read as the kubelet reads them.
func TestReadEnvFile(t *testing.T) {
	const good = "# comment\n\nA='1'\n  B='two words' # why\nC='first\nsecond # no comment\n'\nD= 'empty'\nE=''\nA='again'\nF='$A \\n'\n"
	for key, want := range map[string]string{"A": "1", "B": "two words", "C": "first\nsecond # no comment\n", "D": "", "E": "", "F": `$A \n`, "absent": ""} {
		if got, err := readEnvFile(strings.NewReader(good), key); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", key, got, err, want)
		}
	}
	for _, bad := range []string{"A", "A = '1'", "='1'", "A=1", `A="1"`, "A='1", "A='1'x", "A=", "A='1\n2\n"} {
		if got, err := readEnvFile(strings.NewReader(bad), "A"); err == nil {
			t.Errorf("%q is read as %q", bad, got)
		}
	}
}

// A variable comes from a file that an init container has written; nothing that a
// container can do there has the agent read another file, or wait.
func TestFileKeyRef(t *testing.T) {
	d, _, pod := record(t, "  volumes: [{name: v, emptyDir: {}}]\n  containers:\n  - name: a\n    image: i\n    env:\n    - {name: A, valueFrom: {fileKeyRef: {volumeName: v, path: dir/env, key: KEY}}}\n"+
		"    - {name: B, valueFrom: {fileKeyRef: {volumeName: v, path: dir/env, key: OTHER, optional: true}}}\n    - {name: C, value: \"$(A)!\"}\n")
	dir := d.volumes.EmptyDirs(pod)["v"]
	if err := os.MkdirAll(filepath.Join(dir, "dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "dir", "env")
	environment := func() (string, error) {
		list, err := d.environment(pod, &pod.Spec.Containers[0], nil)
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
