package cdi

import (
	"os"
	"path/filepath"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// FuzzInject requests a device from a file with arbitrary content: it is injected, or the error
// names the device.
func FuzzInject(f *testing.F) {
	for _, text := range []string{
		file, "", "{", "null", `{"cdiVersion": "0.6.0", "kind": "v.example/net", "devices": [{"name": "a", "containerEdits": {}}]}`,
		`{"cdiVersion": "1.0.0", "kind": "v.example/net", "devices": [{"name": "a", "containerEdits": {"deviceNodes": [null], "hooks": [null], "mounts": [null], "intelRdt": {"closID": "x"}, "additionalGids": [0, 1]}}]}`,
		"cdiVersion: 0.6.0\nkind: v.example/net\ndevices:\n- name: a\n  containerEdits: {env: [A], deviceNodes: [{path: /dev/null, permissions: x}]}\n",
	} {
		f.Add([]byte(text))
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, name := range []string{"f.json", "f.yaml"} {
			path := filepath.Join(dir, name)
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
			s := &specs.Spec{Process: &specs.Process{}}
			if err := Inject(s, []string{dir}, []string{"v.example/net=a"}, true); err != nil && err.Error() == "" {
				t.Error("an error without a text")
			}
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
	})
}
