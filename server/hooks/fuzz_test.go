package hooks

//lint:file-ignore SA1019 OCI still has prestart hooks, and NVIDIA's runtime hook is one

import (
	"os"
	"path/filepath"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// FuzzInject reads arbitrary files as hooks. What Check accepts can be injected, and an injected
// hook has a program. What Check rejects is never injected, and Inject reports it, so that no
// container starts without a hook that an administrator has configured for it.
func FuzzInject(f *testing.F) {
	for _, text := range []string{
		`{"version": "1.0.0", "hook": {"path": "/bin/true", "args": ["true"], "env": ["A=1"], "timeout": 3}, "when": {"always": true}, "stages": ["prestart", "poststop"]}`,
		`{"version": "1.0.0", "hook": {"path": "/bin/true"}, "when": {"annotations": {"^a$": ".*"}, "commands": [".*sh"], "hasBindMounts": true}, "stages": ["createContainer"]}`,
		`{"version": "1.0.0", "hook": {"path": "/bin/true", "timeout": 0}, "when": {"annotations": {"(": "["}}, "stages": []}`, `{}`, `null`, ``, `[]`,
		`{"version": "1.0.0", "hook": {"path": "/bin/true"}, "when": {"always": true}, "stages": ["prestart"]} {"x": 1}`,
		`{"version": "0.1.0", "hook": "/bin/true", "arguments": ["x"], "stage": ["prestart"], "cmd": [".*"], "annotation": ["b"], "hasbindmounts": true}`,
		`{"version": "1.0.0", "_comment": 1, "hook": {"path": "/bin/true"}, "when": {"never": 1, "commands": ["x"]}, "stages": ["prestart"]}`,
	} {
		f.Add([]byte(text))
	}
	path := filepath.Join(f.TempDir(), "hook.json")
	dirs := []string{filepath.Dir(path)}
	f.Fuzz(func(t *testing.T, text []byte) {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		s := &specs.Spec{}
		others, err := Inject(s, dirs, Container{Annotations: map[string]string{"a": "b"}, Command: "/bin/sh", BindMounts: true})
		if _, checked := Check(dirs); (checked == nil) != (err == nil && len(others) == 0) || checked != nil && s.Hooks != nil {
			t.Errorf("Check says %v, Inject %v and %v, with %v", checked, err, others, s.Hooks)
		}
		if s.Hooks == nil {
			return
		}
		for _, list := range [][]specs.Hook{s.Hooks.Prestart, s.Hooks.CreateRuntime, s.Hooks.CreateContainer, s.Hooks.StartContainer, s.Hooks.Poststart, s.Hooks.Poststop} {
			for _, h := range list {
				if !filepath.IsAbs(h.Path) {
					t.Errorf("a hook without a program: %+v", h)
				}
			}
		}
	})
}
