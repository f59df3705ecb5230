package cdi

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/test/oddfiles"
)

func TestNames(t *testing.T) {
	got, err := Names([]string{"v.example/net=a", "v.example/net=b"}, map[string]string{
		"cdi.k8s.io/two":   "v.example/net=b,v.example/net=d",
		"cdi.k8s.io/one":   "v.example/net=c",
		"example.com/else": "not a device",
	})
	if want := []string{"v.example/net=a", "v.example/net=b", "v.example/net=c", "v.example/net=d"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
	for _, name := range []string{"", "a", "v.example/net", "v.example/net=", "net=a", "/dev/null"} {
		if _, err := Names(nil, map[string]string{"cdi.k8s.io/x": name}); !errors.Is(err, fault.Invalid) {
			t.Errorf("%q: got %v, want Invalid", name, err)
		}
	}
}

const file = `{"cdiVersion": "0.6.0", "kind": "v.example/net",
 "containerEdits": {"env": ["ANY=1"]},
 "devices": [
  {"name": "a", "containerEdits": {"env": ["A=1"], "deviceNodes": [{"path": "/dev/a", "hostPath": "/dev/null"}]}},
  {"name": "b", "containerEdits": {"env": ["B=VALUE"], "mounts": [{"hostPath": "/etc", "containerPath": "/b", "options": ["ro", "bind"]}],
   "hooks": [{"hookName": "createContainer", "path": "/bin/true", "args": ["true"]}]}}]}`

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestInject(t *testing.T) {
	low, high := t.TempDir(), t.TempDir()
	write(t, low, "v.json", strings.ReplaceAll(file, "VALUE", "low"))
	names := []string{"v.example/net=a", "v.example/net=b"}
	value := func() string {
		t.Helper()
		s := &specs.Spec{Process: &specs.Process{Env: []string{"PATH=/"}}, Linux: &specs.Linux{Resources: &specs.LinuxResources{}}}
		if err := Inject(s, []string{low, high}, names, false); err != nil {
			t.Fatal(err)
		}
		if d := s.Linux.Devices; len(d) != 1 || d[0].Path != "/dev/a" || d[0].Type != "c" || d[0].Major != 1 || d[0].Minor != 3 {
			t.Errorf("devices are %+v", d)
		}
		if r := s.Linux.Resources.Devices; len(r) != 1 || !r[0].Allow || *r[0].Minor != 3 {
			t.Errorf("rules are %+v", r)
		}
		if len(s.Mounts) != 1 || s.Mounts[0].Destination != "/b" || s.Hooks == nil || len(s.Hooks.CreateContainer) != 1 {
			t.Errorf("mounts are %+v, hooks %+v", s.Mounts, s.Hooks)
		}
		i := slices.IndexFunc(s.Process.Env, func(kv string) bool { return strings.HasPrefix(kv, "B=") })
		if i < 0 || !slices.Contains(s.Process.Env, "A=1") || !slices.Contains(s.Process.Env, "ANY=1") {
			t.Fatalf("environment is %q", s.Process.Env)
		}
		return s.Process.Env[i]
	}
	if got := value(); got != "B=low" {
		t.Errorf("got %s", got)
	}
	// A change takes effect at once.
	write(t, high, "v.json", strings.ReplaceAll(file, "VALUE", "high"))
	if got := value(); got != "B=high" {
		t.Errorf("got %s, want the later directory's", got)
	}
}

// Where no device node can be made, the host's node at the container's path would be bound, which
// is another device, or none.
func TestInjectBound(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "v.json", `{"cdiVersion": "0.6.0", "kind": "v.example/net",
 "containerEdits": {"deviceNodes": [{"path": "/dev/full", "hostPath": "/dev/null"}]},
 "devices": [{"name": "a", "containerEdits": {"deviceNodes": [
  {"path": "/dev/a", "hostPath": "/dev/zero"}, {"path": "/dev/null"}, {"path": "/dev/random", "hostPath": "/dev/random"}]}},
  {"name": "own", "containerEdits": {"deviceNodes": [{"path": "/dev/full"}]}}]}`)
	s := &specs.Spec{Process: &specs.Process{}}
	if err := Inject(s, []string{dir}, []string{"v.example/net=a"}, true); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range s.Linux.Devices {
		got = append(got, d.Path)
	}
	for _, m := range s.Mounts {
		got = append(got, m.Source+" at "+m.Destination)
	}
	if want := []string{"/dev/null", "/dev/random", "/dev/null at /dev/full", "/dev/zero at /dev/a"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if n := len(s.Linux.Resources.Devices); n != 4 {
		t.Errorf("there are %d rules, want one for each", n)
	}
	// What a device itself says of a path takes precedence over its file.
	s = &specs.Spec{Process: &specs.Process{}}
	if err := Inject(s, []string{dir}, []string{"v.example/net=own"}, true); err != nil || len(s.Mounts) > 0 || len(s.Linux.Devices) != 1 {
		t.Errorf("mounts %+v and devices %+v, %v", s.Mounts, s.Linux.Devices, err)
	}
}

func TestInjectUnresolvable(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "good.json", file)
	write(t, dir, "bad.json", "{")
	s := &specs.Spec{Process: &specs.Process{}}
	err := Inject(s, []string{dir, filepath.Join(dir, "none")}, []string{"v.example/net=a", "v.example/net=z", "w.example/gpu=0"}, false)
	if !errors.Is(err, fault.Invalid) {
		t.Fatalf("got %v, want Invalid", err)
	}
	for _, want := range []string{"v.example/net=z, w.example/gpu=0 is in no file of " + dir, "bad.json"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %q", err, want)
		}
	}
	if s.Linux != nil || len(s.Process.Env) > 0 {
		t.Errorf("it injected %+v", s)
	}
	if err := Inject(s, []string{dir}, nil, false); err != nil {
		t.Errorf("no device: %v", err)
	}
}

// A file that is broken in any way is named to those who request what may be in it, and does no harm
// to those who request another device.
func TestOddFileBesideAGoodOne(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "good.json", file)
	oddfiles.Each(t, filepath.Join(dir, "odd.json"), func(kind string) {
		if err := Inject(&specs.Spec{Process: &specs.Process{}}, []string{dir}, []string{"v.example/net=a"}, false); err != nil {
			t.Errorf("%s: the good file's device: %v", kind, err)
		}
		err := Inject(&specs.Spec{Process: &specs.Process{}}, []string{dir}, []string{"w.example/net=a"}, false)
		if !errors.Is(err, fault.Invalid) || kind != "directory" && !strings.Contains(err.Error(), "odd.json") {
			t.Errorf("%s: got %v, want Invalid and the file's name", kind, err)
		}
	})
}

func TestBrokenFileBesideAGoodOne(t *testing.T) {
	null := func(what string) string {
		return `{"cdiVersion": "0.6.0", "kind": "w.example/net", "devices": [{"name": "a", "containerEdits": {"` + what + `": [null]}}]}`
	}
	for what, text := range map[string]string{
		"empty": "", "half": `{"cdiVersion": "0.6.0", "kind": "w.ex`, "garbage": "\xff\xff", "list": "[]", "null": "null", "of a later version": `{"cdiVersion": "99.0.0", "kind": "w.example/net", "devices": []}`,
		"deviceNodes": null("deviceNodes"), "hooks": null("hooks"), "mounts": null("mounts"), "no file": "", "twice": strings.ReplaceAll(file, "v.example", "w.example"),
	} {
		dir := t.TempDir()
		write(t, dir, "good.json", file)
		bad := filepath.Join(dir, "bad.json")
		write(t, dir, "bad.json", text)
		switch what {
		case "no file":
			if err := errors.Join(os.Remove(bad), unix.Mkfifo(bad, 0o600)); err != nil {
				t.Fatal(err)
			}
		case "twice":
			write(t, dir, "also.json", text)
		}
		s := &specs.Spec{Process: &specs.Process{}}
		if err := Inject(s, []string{dir}, []string{"v.example/net=a"}, false); err != nil || s.Process.Env == nil && s.Linux == nil && s.Mounts == nil {
			t.Errorf("%s: the good file's device: %v, %+v", what, err, s)
		}
		err := Inject(&specs.Spec{Process: &specs.Process{}}, []string{dir}, []string{"w.example/net=a"}, false)
		if !errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "bad.json") || strings.Contains(err.Error(), "good.json") {
			t.Errorf("%s: got %v, want Invalid and the file's name", what, err)
		}
	}
}
