package hooks

//lint:file-ignore SA1019 OCI still has prestart hooks, and NVIDIA's runtime hook is one

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
			if _, err := Inject(s, []string{dir}, c); err != nil {
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
	if _, err := Inject(s, []string{low, high, filepath.Join(low, "none")}, Container{}); err != nil {
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

// A bad file is an error that names it, for each container that it may concern, and for no other.
func TestBroken(t *testing.T) {
	mine := `{"commands": ["^/bin/mine$"]}`
	for name, tt := range map[string]struct {
		text string
		all  bool // it may concern every container
	}{
		"syntax":      {`{`, true},
		"another":     {document("x", mine, `"poststop"`) + document("y", mine, `"poststop"`), true},
		"no file":     {"", true},
		"too long":    {document("x", mine, `"poststop"`) + strings.Repeat(" ", maxFile), true},
		"version":     {strings.Replace(document("x", mine, `"poststop"`), "1.0.0", "2.0.0", 1), true},
		"type":        {document("x", `{"commands": "mine"}`, `"poststop"`), true},
		"no version":  {strings.Replace(document("x", mine, `"poststop"`), "version", "version_", 1), true},
		"conditions":  {document("x", `{"sometimes": true}`, `"poststop"`), true},
		"command":     {document("x", `{"always": true, "commands": ["("]}`, `"poststop"`), true},
		"no stage":    {document("x", mine, ``), false},
		"stage":       {document("x", mine, `"precreate"`), false},
		"relative":    {strings.Replace(document("x", mine, `"poststop"`), "/bin/sh", "bin/sh", 1), false},
		"no program":  {strings.Replace(document("x", mine, `"poststop"`), "/bin/sh", "/no/such", 1), false},
		"timeout":     {strings.Replace(document("x", mine, `"poststop"`), "5", "0", 1), false},
		"condition":   {document("x", `{"commands": ["mine"], "sometimes": true}`, `"poststop"`), false},
		"annotation":  {document("x", `{"commands": ["mine"], "annotations": {"a": "("}}`, `"poststop"`), false},
		"one command": {document("x", `{"commands": ["mine", "("], "hasBindMounts": true}`, `"poststop"`), false},
		"old pattern": {`{"hook": "/bin/sh", "stages": ["poststop"], "cmds": ["mine"], "annotations": ["("]}`, true},
		"old key":     {`{"hook": "/bin/sh", "stages": ["poststop"], "comands": ["mine"]}`, true},
		"old keys":    {`{"hook": "/bin/sh", "stages": ["poststop"], "cmds": ["mine"], "annotatons": ["x"]}`, true},
		"old stage":   {`{"hook": "/bin/sh", "stage": ["precreate"], "cmds": ["mine"]}`, false},
	} {
		dir := t.TempDir()
		if name != "no file" {
			write(t, dir, "broken.json", tt.text)
		} else if err := unix.Mkfifo(filepath.Join(dir, "broken.json"), 0o600); err != nil {
			t.Fatal(err)
		}
		write(t, dir, "good.json", document("good", `{"always": true}`, `"prestart"`))
		s := new(specs.Spec)
		_, err := Inject(s, []string{dir}, Container{Command: "/bin/mine", BindMounts: true, Annotations: map[string]string{"a": "b"}})
		if err == nil || !strings.Contains(err.Error(), "broken.json") {
			t.Errorf("%s: got %v, want an error that names the file", name, err)
		}
		if s.Hooks != nil {
			t.Errorf("%s: it is injected all the same", name)
		}
		if _, got := Check([]string{dir}); got == nil || !strings.Contains(got.Error(), "broken.json") || strings.Contains(got.Error(), "good") {
			t.Errorf("%s: Check says %v", name, got)
		}
		others, err := Inject(s, []string{dir}, Container{Command: "/bin/theirs"})
		switch {
		case tt.all:
			if err == nil || !strings.Contains(err.Error(), "broken.json") {
				t.Errorf("%s: another container got %v", name, err)
			}
		case err != nil:
			t.Errorf("%s: another container got %v", name, err)
		case len(others) != 1 || !strings.Contains(others[0].Error(), "broken.json") || s.Hooks == nil || len(s.Hooks.Prestart) != 1:
			t.Errorf("%s: another container got %+v, and %v", name, s.Hooks, others)
		}
	}
}

// Files that Podman and CRI-O accept work here too: those with keys that hooks do not have, and
// those of the older format.
func TestFilesOfOtherRuntimes(t *testing.T) {
	command, value, binds := Container{Command: "/bin/mine"}, Container{Annotations: map[string]string{"any": "gpu"}}, Container{BindMounts: true}
	for text, want := range map[string][3]bool{
		strings.Replace(document("x", `{"always": true}`, `"prestart"`), "{", `{"_comment": "managed by ansible", `, 1):                          {true, true, true},
		strings.Replace(document("x", `{"always": true}`, `"prestart"`), `"timeout"`, `"_comment": "", "timeout"`, 1):                            {true, true, true},
		`{"_comment": "", "cmds": ["mine"], "hook": "/bin/sh", "stages": ["prestart"]}`:                                                          {true, false, false},
		`{"cmd": [".*"], "hook": "/bin/sh", "stage": ["prestart"]}`:                                                                              {true, true, true},
		`{"version": "0.1.0", "cmds": ["mine"], "annotations": ["^gpu$", "tpu"], "hook": "/bin/sh", "arguments": ["x"], "stages": ["prestart"]}`: {true, true, false},
		`{"hasbindmounts": true, "annotation": ["tpu"], "hook": "/bin/sh", "stages": ["prestart"]}`:                                              {false, false, true},
		`{"hook": "/bin/sh", "stages": ["prestart"]}`:                                                                                            {false, false, false},
	} {
		dir := t.TempDir()
		write(t, dir, "x.json", text)
		for i, c := range []Container{command, value, binds} {
			s := new(specs.Spec)
			if _, err := Inject(s, []string{dir}, c); err != nil || (s.Hooks != nil) != want[i] {
				t.Errorf("%s\non %+v: %+v, %v", text, c, s.Hooks, err)
			} else if want[i] && strings.Contains(text, "arguments") && strings.Join(s.Hooks.Prestart[0].Args, " ") != "/bin/sh x" {
				t.Errorf("arguments are %q", s.Hooks.Prestart[0].Args)
			}
		}
		if remarks, err := Check([]string{dir}); err != nil || (len(remarks) > 0) != strings.Contains(text, "_comment") {
			t.Errorf("%s\n%q, %v", text, remarks, err)
		}
	}
}
