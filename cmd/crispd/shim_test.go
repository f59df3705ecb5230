package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	runc "github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/crisp-cri/crisp/config"
	"github.com/crisp-cri/crisp/server/spec"
)

// loadConfig reads a configuration with root and state in a temporary directory.
func loadConfig(t *testing.T, text string) *config.Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(config.Source{File: file})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Options reach a shim as the messages that containerd's modules define, which tools that know
// containerd write.
func TestShimOptions(t *testing.T) {
	for _, test := range []struct {
		name, text, kind string
		want             proto.Message
	}{
		{"a file of gVisor's", `shim = "/usr/bin/containerd-shim-runsc-v1"` + "\n" + `options = "/etc/runsc.toml"`, "runtimeoptions.v1.Options",
			&runtimeoptions.Options{TypeUrl: "io.containerd.runsc.v1.options", ConfigPath: "/etc/runsc.toml"}},
		{"a file of a program with another name", `shim = "/opt/kata/shim"` + "\n" + `options = "/etc/kata.toml"`, "runtimeoptions.v1.Options",
			&runtimeoptions.Options{ConfigPath: "/etc/kata.toml"}},
		{"runc's", `shim = "/s"` + "\n" + `options = { type_url = "containerd.runc.v1.Options", BinaryName = "/usr/bin/crun", SystemdCgroup = true, NoPivotRoot = false, IoUid = 3, Root = "/r" }`,
			"containerd.runc.v1.Options", &runc.Options{BinaryName: "/usr/bin/crun", SystemdCgroup: true, IoUid: 3, Root: "/r"}},
		{"any other table", `shim = "/s"` + "\n" + `options = { type_url = "x.v1", a = 1, b = { c = ["d"] } }`, "runtimeoptions.v1.Options",
			&runtimeoptions.Options{TypeUrl: "x.v1", ConfigBody: []byte("a = 1\n\n[b]\n  c = [\"d\"]\n")}},
	} {
		c := loadConfig(t, "[handlers.x]\n"+test.text+"\n")
		all, err := handlers(t.Context(), c, spec.Host{RecursiveRO: true}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		got := test.want.ProtoReflect().New().Interface()
		h := all["x"]
		if err := proto.Unmarshal(h.Shim.Options, got); err != nil || h.Shim.OptionsType != test.kind {
			t.Errorf("%s: type %s, %v", test.name, h.Shim.OptionsType, err)
		}
		if diff := cmp.Diff(test.want, got, protocmp.Transform()); diff != "" {
			t.Errorf("%s: %s", test.name, diff)
		}
		if h.NoUserNS == nil || h.SpecHost.RecursiveRO {
			t.Errorf("%s: the handler has user namespaces or recursive read-only mounts", test.name)
		}
	}
	// With systemd's cgroups runc's shim is told so, unless it was given another driver.
	for text, want := range map[string]bool{
		`shim = "/bin/containerd-shim-runc-v2"`:                                                         true,
		"shim = \"/s\"\noptions = { type_url = \"containerd.runc.v1.Options\" }":                        true,
		"shim = \"/s\"\noptions = { type_url = \"containerd.runc.v1.Options\", SystemdCgroup = false }": false,
	} {
		all, err := handlers(t.Context(), loadConfig(t, "cgroup_driver = \"systemd\"\n[handlers.x]\n"+text+"\n"), spec.Host{}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		got := new(runc.Options)
		if err := proto.Unmarshal(all["x"].Shim.Options, got); err != nil || got.SystemdCgroup != want {
			t.Errorf("%s: %v, %v, want SystemdCgroup %v", text, got, err, want)
		}
	}
	c := loadConfig(t, "[handlers.x]\nshim = \"/s\"\n")
	all, err := handlers(t.Context(), c, spec.Host{}, slog.New(slog.DiscardHandler))
	if err != nil || all["x"].Shim.OptionsType != "" || all["x"].Shim.Options != nil {
		t.Errorf("without options: %+v, %v", all["x"].Shim, err)
	}
}

// Options of runc's shim that it does not have, or that have another type, are errors with the
// line.
func TestBadShimOptions(t *testing.T) {
	for text, want := range map[string]string{
		`Binary = "runc"`:         ".options: containerd.runc.v1.Options has no Binary, only BinaryName, Criu",
		`BinaryName = true`:       ".options: BinaryName is a bool, not a string",
		`IoUid = -1`:              ".options: IoUid = -1 is not an ID",
		`SystemdCgroup = "true"`:  ".options: SystemdCgroup is a string, not a bool",
		`Root = ["/a"]`:           ".options: Root is a []interface {}, not a string",
		`IoGid = 4294967296`:      ".options: IoGid = 4294967296 is not an ID",
		`CriuWorkPath = { a = 1}`: ".options: CriuWorkPath is a map",
	} {
		c := loadConfig(t, "[handlers.x]\nshim = \"/s\"\noptions = { type_url = \"containerd.runc.v1.Options\", "+text+" }\n")
		_, err := handlers(t.Context(), c, spec.Host{}, slog.New(slog.DiscardHandler))
		if err == nil || !strings.Contains(err.Error(), "config.toml:3: handlers.x"+want) {
			t.Errorf("%s: %v, want …%s", text, err, want)
		}
	}
}

// crispd check says what each handler is, and what it lacks. A shim may come later; without an OCI
// runtime crispd does not start.
func TestCheckHandlers(t *testing.T) {
	dir := t.TempDir()
	program, options := filepath.Join(dir, "containerd-shim-x-v1"), filepath.Join(dir, "x.toml")
	for _, file := range []string{program, options} {
		if err := os.WriteFile(file, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c := loadConfig(t, `
[handlers.a]
shim = "`+program+`"
options = "`+options+`"
[handlers.b]
shim = "`+program+`"
snapshot = "mounts"
options = "`+dir+`/none.toml"
[handlers.c]
shim = "`+dir+`/none"
[handlers.d]
[handlers.e]
engine = "`+dir+`/none"
`)
	list := checkHandlers(t.Context(), c)
	for i, want := range []struct {
		what, follows string
		ok, fatal     bool
	}{
		{"handler a: shim " + program + ", root file systems as directory", "", true, false},
		{"handler b: shim " + program + ", root file systems as mounts", "a file that does not exist: " + dir + "/none.toml", false, false},
		{"handler c: shim " + dir + "/none, ", "its pods cannot be started until the program is there", false, false},
		{"handler d: libcontainer", "", true, false},
		{"handler e: OCI runtime " + dir + "/none", "no such file", false, true},
	} {
		f := list[i]
		if !strings.HasPrefix(f.what, want.what) || !strings.Contains(f.follows, want.follows) || f.ok != want.ok || !f.ok && f.fatal != want.fatal {
			t.Errorf("finding is %+v, want %+v", f, want)
		}
	}
}
