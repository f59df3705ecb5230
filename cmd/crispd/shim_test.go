package main

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/api/types"
	runc "github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/crisp-cri/crisp/config"
	"github.com/crisp-cri/crisp/oci"
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

// What a shim reports with -info, in containerd's message, is what its handler can, as far as the
// kernel can it, too. It is asked with the handler's options. User namespaces stay refused.
func TestShimFeatures(t *testing.T) {
	dir := t.TempDir()
	program, answer, asked := filepath.Join(dir, "shim"), filepath.Join(dir, "answer"), filepath.Join(dir, "asked")
	script := "#!/bin/sh\n[ \"$*\" = -info ] && cat >" + asked + " && cat " + answer + "\n"
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	c := loadConfig(t, "[handlers.x]\nshim = \""+program+"\"\noptions = { type_url = \"containerd.runc.v1.Options\", BinaryName = \"/bin/crun\" }\n")
	runcKind := "types.containerd.io/opencontainers/runtime-spec/1/features/Features"
	all := `{"mountOptions": ["ro", "rro", "nosymfollow"], "linux": {"namespaces": ["user"], "mountExtensions": {"idmap": {"enabled": true}}, "netDevices": {"enabled": true}}}`
	named := &types.RuntimeInfo{Name: "io.containerd.runc.v2", Version: &types.RuntimeVersion{Version: "v2.4.2", Revision: "abc"}}
	for _, test := range []struct {
		name, kind, reports string
		kernel              bool
		want                oci.Features
	}{
		{"everything", runcKind, all, true, oci.Features{Version: "io.containerd.runc.v2 v2.4.2", RecursiveRO: true, NoSymFollow: true, IDMap: true, NetDevices: true}},
		{"an old kernel", runcKind, all, false, oci.Features{Version: "io.containerd.runc.v2 v2.4.2", RecursiveRO: true, NoSymFollow: true, IDMap: true, NetDevices: true}},
		{"nothing", runcKind, `{}`, true, oci.Features{Version: "io.containerd.runc.v2 v2.4.2"}},
		{"features of another kind", "example.com/Features", all, true, oci.Features{Version: "io.containerd.runc.v2 v2.4.2"}},
		{"features that are no JSON", runcKind, `{`, true, oci.Features{Version: "io.containerd.runc.v2 v2.4.2"}},
	} {
		info := proto.CloneOf(named)
		info.Features = &anypb.Any{TypeUrl: test.kind, Value: []byte(test.reports)}
		info.Annotations = map[string]string{"rro": "rro"}
		data, err := proto.Marshal(info)
		if err == nil {
			err = os.WriteFile(answer, data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		got, err := handlers(t.Context(), c, spec.Host{RecursiveRO: test.kernel}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if h := got["x"]; h.Features != test.want || h.SpecHost.RecursiveRO != (test.kernel && test.want.RecursiveRO) || h.NoUserNS == nil {
			t.Errorf("%s: %+v, recursive read-only %v, user namespaces %v", test.name, h.Features, h.SpecHost.RecursiveRO, h.NoUserNS)
		}
	}
	var stdin anypb.Any
	var options runc.Options
	data, err := os.ReadFile(asked)
	if err == nil {
		err = proto.Unmarshal(data, &stdin)
	}
	if err == nil {
		err = proto.Unmarshal(stdin.Value, &options)
	}
	if err != nil || stdin.TypeUrl != "containerd.runc.v1.Options" || options.BinaryName != "/bin/crun" {
		t.Errorf("the shim was asked with %v, %v, %v", &stdin, &options, err)
	}
	if err := os.WriteFile(answer, []byte("\x0a\x01"), 0o600); err != nil {
		t.Fatal(err)
	}
	list := checkHandlers(t.Context(), c, false)
	if !list[0].ok || !strings.HasSuffix(list[0].what, "(which does not report its features)") {
		t.Errorf("of a shim that answers with half a message check says %+v", list[0])
	}
}

// A shim that does not know -info, that prints without end or never answers has no features, and
// crispd starts. What it has started meanwhile is ended, too.
func TestShimThatReportsNothing(t *testing.T) {
	dir := t.TempDir()
	program, pid := filepath.Join(dir, "shim"), filepath.Join(dir, "pid")
	for name, script := range map[string]string{
		"an old one": "echo 'flag provided but not defined: -info' >&2; exit 2",
		"endless":    "exec yes",
		"hangs":      "sleep 1000 & echo $! >" + pid + "; wait",
	} {
		if err := os.WriteFile(program, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		if name == "hangs" {
			go func() {
				for data, _ := os.ReadFile(pid); len(data) == 0; data, _ = os.ReadFile(pid) {
					time.Sleep(time.Millisecond)
				}
				cancel()
			}()
		}
		f, err := oci.AskShim(ctx, &oci.Shim{Path: program})
		cancel()
		if err == nil || !strings.Contains(err.Error(), program) || f != (oci.Features{}) {
			t.Errorf("%s: %+v, %v", name, f, err)
		}
		if name == "an old one" && !strings.Contains(err.Error(), "not defined: -info") {
			t.Errorf("%s: the error does not say what the shim said: %v", name, err)
		}
	}
	data, err := os.ReadFile(pid)
	if err != nil {
		t.Fatal(err)
	}
	stat, err := os.ReadFile("/proc/" + strings.TrimSpace(string(data)) + "/cmdline")
	if err == nil && strings.Contains(string(stat), "1000") {
		t.Errorf("what the shim has started still runs: %q", stat)
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
sandboxer = "shim"
options = "`+dir+`/none.toml"
[handlers.c]
shim = "`+dir+`/none"
[handlers.d]
[handlers.e]
engine = "`+dir+`/none"
`)
	list := checkHandlers(t.Context(), c, false)
	for i, want := range []struct {
		what, follows string
		ok, fatal     bool
	}{
		{"handler a: shim " + program + ", root file systems as directory", "", true, false},
		{"handler b: shim " + program + ", root file systems as mounts, sandboxes by its Sandbox API", "a file that does not exist: " + dir + "/none.toml", false, false},
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
