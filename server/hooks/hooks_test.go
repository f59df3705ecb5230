package hooks

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func document(id, when, stages string) string {
	return fmt.Sprintf(`{"version": "1.0.0", "hook": {"path": "/bin/sh", "args": ["sh", %q], "timeout": 5}, "when": %s, "stages": [%s]}`, id, when, stages)
}

// The conditions that select containers: oci-hooks(5).
func TestWhen(t *testing.T) {
	c := Container{Annotations: map[string]string{"example.com/gpu": "yes", "b": "c"}, Command: "/usr/bin/python3", BindMounts: true}
	bare := Container{Command: "/pause"}
	for _, tt := range []struct {
		when       string
		onC, onBar bool
	}{
		{`{}`, false, false},
		{`{"always": true}`, true, true},
		{`{"always": false}`, false, false},
		{`{"always": false, "commands": ["python"]}`, false, false},
		{`{"hasBindMounts": true}`, true, false},
		{`{"hasBindMounts": false}`, false, false},
		{`{"annotations": {"^example\\.com/gpu$": "^yes$"}}`, true, false},
		{`{"annotations": {"gpu": "^no$"}}`, false, false},
		{`{"annotations": {"gpu": "yes", "^b$": "d"}}`, false, false},
		{`{"commands": ["^/bin/", "python[23]$"]}`, true, false},
		{`{"always": true, "commands": ["^/pause$"]}`, false, true},
		{`{"commands": ["python"], "hasBindMounts": true, "annotations": {"b": "c"}}`, true, false},
	} {
		dir := t.TempDir()
		write(t, dir, "x.json", document("x", tt.when, `"createRuntime"`))
		for want, c := range map[*bool]Container{&tt.onC: c, &tt.onBar: bare} {
			s := new(specs.Spec)
			if err := Inject(s, []string{dir}, c); err != nil {
				t.Fatalf("%s: %v", tt.when, err)
			}
			if got := s.Hooks != nil; got != *want {
				t.Errorf("%s on %s: hook applies: %t, want %t", tt.when, c.Command, got, *want)
			}
		}
	}
}

func TestOrderAndStages(t *testing.T) {
	low, high := t.TempDir(), t.TempDir()
	write(t, low, "B.json", document("B", `{"always": true}`, `"prestart", "poststop"`))
	write(t, low, "c.json", document("low c", `{"always": true}`, `"prestart"`))
	write(t, low, "readme.txt", "no hook")
	write(t, high, "c.json", document("c", `{"always": true}`, `"prestart", "createRuntime", "createContainer", "startContainer", "poststart"`))
	write(t, high, "a.json", document("a", `{"always": true}`, `"prestart"`))
	s := &specs.Spec{Hooks: &specs.Hooks{CreateContainer: []specs.Hook{{Path: "/from/cdi"}}}}
	if err := Inject(s, []string{low, high, filepath.Join(low, "none")}, Container{}); err != nil {
		t.Fatal(err)
	}
	ids := func(list []specs.Hook) string {
		var b strings.Builder
		for _, h := range list {
			b.WriteString(h.Path + " " + strings.Join(h.Args, " ") + ";")
		}
		return b.String()
	}
	for _, tt := range []struct {
		list []specs.Hook
		want string
	}{
		{s.Hooks.Prestart, "/bin/sh sh a;/bin/sh sh B;/bin/sh sh c;"},
		{s.Hooks.CreateRuntime, "/bin/sh sh c;"},
		{s.Hooks.CreateContainer, "/from/cdi ;/bin/sh sh c;"},
		{s.Hooks.StartContainer, "/bin/sh sh c;"},
		{s.Hooks.Poststart, "/bin/sh sh c;"},
		{s.Hooks.Poststop, "/bin/sh sh B;"},
	} {
		if got := ids(tt.list); got != tt.want {
			t.Errorf("got %s, want %s", got, tt.want)
		}
	}
	if got := s.Hooks.Prestart[0].Timeout; got == nil || *got != 5 {
		t.Errorf("timeout is %v", got)
	}
}

// A bad file is an error that names it, for every container.
func TestBroken(t *testing.T) {
	always := `{"always": true}`
	for name, text := range map[string]string{
		"syntax":     `{`,
		"version":    strings.Replace(document("x", always, `"poststop"`), "1.0.0", "2.0.0", 1),
		"no stage":   document("x", always, ``),
		"stage":      document("x", always, `"precreate"`),
		"relative":   strings.Replace(document("x", always, `"poststop"`), "/bin/sh", "bin/sh", 1),
		"no program": strings.Replace(document("x", always, `"poststop"`), "/bin/sh", "/no/such", 1),
		"timeout":    strings.Replace(document("x", always, `"poststop"`), "5", "0", 1),
		"condition":  document("x", `{"sometimes": true}`, `"poststop"`),
		"command":    document("x", `{"always": false, "commands": ["("]}`, `"poststop"`),
		"annotation": document("x", `{"annotations": {"a": "("}}`, `"poststop"`),
		"another":    document("x", always, `"poststop"`) + document("y", always, `"poststop"`),
		"no file":    "",
		"too long":   document("x", always, `"poststop"`) + strings.Repeat(" ", maxFile),
	} {
		dir := t.TempDir()
		if name != "no file" {
			write(t, dir, "broken.json", text)
		} else if err := unix.Mkfifo(filepath.Join(dir, "broken.json"), 0o600); err != nil {
			t.Fatal(err)
		}
		s := new(specs.Spec)
		err := Inject(s, []string{dir}, Container{})
		if err == nil || !strings.Contains(err.Error(), "broken.json") {
			t.Errorf("%s: got %v, want an error that names the file", name, err)
		}
		if s.Hooks != nil {
			t.Errorf("%s: it is injected all the same", name)
		}
		if got := Check([]string{dir}); got == nil || got.Error() != err.Error() {
			t.Errorf("%s: Check says %v, want %v", name, got, err)
		}
	}
}
