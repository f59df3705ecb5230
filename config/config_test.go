package config_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/config"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// write makes a configuration directory with these files and returns it.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// A value comes from the source of the highest precedence, and Origin returns that.
func TestOrigin(t *testing.T) {
	dir := write(t, map[string]string{
		"config.toml":       "root = \"/a\"\nstate = \"/s\"\n\n[log]\nlevel = \"warn\"\nformat = \"json\"\n[image]\npinned = [\"x\", \"y\"]\n",
		"config.d/20.toml":  "[image]\npinned = [\"z\"]\nprogress_timeout = \"90s\"\n",
		"config.d/10.toml":  "image.pinned = [\"w\"]\nimage.max_parallel = 7\n",
		"config.d/skip.txt": "not TOML",
	})
	file := filepath.Join(dir, "config.toml")
	c, err := config.Load(config.Source{File: file, Flags: map[string]string{"root": "/flag", "log.level": "debug"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ key, value, origin string }{
		{"root", c.Root, "flag --root"},
		{"log.level", c.Log.Level, "flag --log-level"},
		{"state", c.State, file + ":2"},
		{"log.format", c.Log.Format, file + ":6"},
		{"image.pinned", strings.Join(c.Image.Pinned, ","), dir + "/config.d/20.toml:2"},
		{"image.max_parallel", fmt.Sprint(c.Image.MaxParallel), dir + "/config.d/10.toml:2"},
		{"image.progress_timeout", c.Image.ProgressTimeout.String(), dir + "/config.d/20.toml:3"},
		{"socket", c.Socket, "default"},
	} {
		if got := c.Origin(tt.key); got != tt.origin {
			t.Errorf("%s = %q comes from %q, want %q", tt.key, tt.value, got, tt.origin)
		}
	}
	if c.Root != "/flag" || c.Log.Level != "debug" || c.State != "/s" || strings.Join(c.Image.Pinned, ",") != "z" ||
		c.Image.MaxParallel != 7 || c.Image.ProgressTimeout != 90*time.Second || c.Socket != "/s/crisp.sock" || c.CNI.ConfDir != "/flag/cni/net.d" || c.NRI.Socket != "/s/nri.sock" || c.CAdvisorSocket != "/s/cadvisor.sock" {
		t.Errorf("got %+v", c)
	}
}

// Without any source the defaults are those of the documentation.
func TestDefaults(t *testing.T) {
	if _, err := os.Stat(config.DefaultFile); err == nil {
		t.Skip("needs a machine without " + config.DefaultFile)
	}
	c, err := config.Load(config.Source{OwnCNI: "/own"})
	if err != nil {
		t.Fatal(err)
	}
	if !c.DefaultInstance() || c.Socket != "/run/crisp/crisp.sock" || c.CNI.ConfDir != "/etc/cni/net.d" || c.CNI.BinDirs[0] != "/own" ||
		!c.NRI.Enabled || c.NRI.Socket != "/var/run/nri/nri.sock" || c.CAdvisorSocket != "/run/crisp/cadvisor.sock" || c.Log.Level != "info" ||
		strings.Join(c.CDI.SpecDirs, ",") != "/etc/cdi,/var/run/cdi" || c.HooksDirs[0] != "/usr/share/containers/oci/hooks.d" {
		t.Errorf("got %+v", c)
	}
}

// A state directory behind a symbolic link, such as /var/run/crisp, is the directory itself, whether
// it exists yet or not.
func TestStateBehindLink(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "run"), 0o755); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{
		"link": "run", "run/up": "../gone/a", "emptied": "link/b", "absolute": dir + "/emptied/c", "loop": "gone/../loop/d",
	} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	for given, want := range map[string]string{
		"link": "run", "link/a/b": "run/a/b", "none/../link/a": "run/a", "a/b": "a/b",
		// What a link leads to is gone after crispd wipe, and below /run after a reboot.
		"emptied": "run/b", "emptied/a": "run/b/a", "absolute": "run/b/c", "link/up": "gone/a",
	} {
		c, err := config.Load(config.Source{Flags: map[string]string{"state": dir + "/" + given, "root": dir + "/root"}})
		if err != nil {
			t.Fatal(err)
		}
		if c.State != filepath.Join(dir, want) || c.Socket != filepath.Join(dir, want, "crisp.sock") {
			t.Errorf("%s: state is %s, socket %s, want %s", given, c.State, c.Socket, want)
		}
	}
	// It cannot be used, but must not be followed for ever.
	config.Load(config.Source{Flags: map[string]string{"state": dir + "/loop", "root": dir + "/root"}})
}

// What crispd prints can be read back without loss.
func TestWriteIsRead(t *testing.T) {
	dir := write(t, map[string]string{"config.toml": `
rlimits = ["nofile=1:2", "core=-1"]
device_ownership_from_security_context = true
[streaming]
address = "[::1]:10010"
idle_timeout = "1h2m3s"
[image]
pinned = ["a\"b\\c", "ü*"]
[handlers.runc]
engine = "/usr/sbin/runc"
default_capabilities = []
[handlers.gvisor]
shim = "/bin/containerd-shim-runsc-v1"
options = "/etc/containerd/runsc.toml"
overhead = { cpu = "250m" }
[handlers.odd]
shim = "/bin/shim"
snapshot = "mounts"
sandboxer = "shim"
[handlers.odd.options]
type_url = "odd.v1"
"a b" = [1, 2.0, 1e300, "\u0001", -inf]
[handlers.odd.options.below]
deep = { x = true, y = [] }
`})
	c, err := config.Load(config.Source{File: filepath.Join(dir, "config.toml"), Flags: map[string]string{"state": "/run/other"}})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := c.Write(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`state = "/run/other" # flag --state`, `idle_timeout = "1h2m3s" # ` + dir + `/config.toml:6`, `level = "info" # default`} {
		if !strings.Contains(out.String(), want+"\n") {
			t.Errorf("no line %s in\n%s", want, out.String())
		}
	}
	again := write(t, map[string]string{"config.toml": out.String()})
	back, err := config.Load(config.Source{File: filepath.Join(again, "config.toml")})
	if err != nil {
		t.Fatalf("%v in\n%s", err, out.String())
	}
	if diff := cmp.Diff(c, back, cmpopts.IgnoreUnexported(config.Config{}), cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
}

// A handler has its own settings, and the common ones for the rest.
func TestHandlers(t *testing.T) {
	dir := write(t, map[string]string{
		"config.toml":      "default_capabilities = [\"KILL\"]\nseccomp_profile = \"/all\"\n[handlers.runc]\nengine = \"/usr/sbin/runc\"\n[handlers.tight]\ndefault_capabilities = []\nseccomp_profile = \"/tight\"\ncni_conf_dir = \"/net.d\"\n",
		"config.d/10.toml": "[handlers.runc]\ncgroup_namespace = \"host\"\n[handlers.kata]\nshim = \"/bin/containerd-shim-kata-v2\"\noptions = { type_url = \"t\", a = 1 }\nsnapshot = \"mounts\"\n[handlers.kata.overhead]\ncpu = \"250m\"\nmemory = \"120Mi\"\n",
	})
	c, err := config.Load(config.Source{File: filepath.Join(dir, "config.toml")})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]*config.Handler{
		"runc": {Engine: "/usr/sbin/runc", DefaultCapabilities: []string{"KILL"}, SeccompProfile: "/all", CgroupNamespace: "host"},
		"kata": {
			Shim: "/bin/containerd-shim-kata-v2", Options: &config.ShimOptions{Table: map[string]any{"type_url": "t", "a": int64(1)}}, Snapshot: "mounts", Sandboxer: "podsandbox",
			DefaultCapabilities: []string{"KILL"}, SeccompProfile: "/all", CgroupNamespace: "auto", Overhead: config.Overhead{CPU: "250m", Memory: "120Mi"},
		},
		"tight": {Engine: "libcontainer", DefaultCapabilities: []string{}, SeccompProfile: "/tight", CgroupNamespace: "auto", CNIConfDir: "/net.d"},
	}
	if diff := cmp.Diff(want, c.Handlers); diff != "" {
		t.Errorf("handlers (-want +got):\n%s", diff)
	}
	if o := c.Handlers["kata"].Overhead; o.MilliCPU() != 250 || o.Bytes() != 120<<20 {
		t.Errorf("the overhead of kata is %d thousandths of a CPU and %d bytes", o.MilliCPU(), o.Bytes())
	}
	if got := c.Origin("handlers.kata.overhead.memory"); got != dir+"/config.d/10.toml:9" {
		t.Errorf("overhead comes from %s", got)
	}
	if got := c.Origin("handlers.runc.engine"); got != dir+"/config.toml:4" {
		t.Errorf("engine comes from %s", got)
	}
}

// Every error names the file, the line and the key.
func TestMistakes(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"unknown key", "root = \"/a\"\nrooot = \"/b\"\n", ":2: rooot is not a key of the configuration"},
		{"unknown key in a table", "[log]\n# a comment\n  levels = \"x\"\n", ":3: log.levels is not a key of the configuration"},
		{"unknown table", "\n\n[images]\npinned = []\n", ":3: images is not a key of the configuration"},
		{"unknown empty table", "[nothing]\n", ":1: nothing is not a key of the configuration"},
		{"unknown table below", "[image]\n[image.auth]\nx = 1\n", ":2: image.auth is not a key of the configuration"},
		{"dotted", "image.pins = []\n", ":1: image.pins is not a key of the configuration"},
		{"case", "Root = \"/a\"\n", ":1: Root is not a key of the configuration"},
		{"a line that only looks like a key", "seccomp_profile = \"\"\"\nroot = 1\n\"\"\"\nlog_max_line = \"x\"", ":4: log_max_line: want an integer, have a string"},
		{"syntax", "root = \"/a\"\nstate = \n", ":2: expected value"},
		{"twice", "root = \"/a\"\nroot = \"/b\"\n", ":2: "},
		{"string", "root = 3\n", ":1: root: want a string, have an integer"},
		{"boolean", "selinux = \"yes\"\n", ":1: selinux: want true or false, have a string"},
		{"neither true, false nor auto", "[cni]\ndefault_network = \"yes\"\n", ":2: cni.default_network: want true, false or \"auto\", have \"yes\""},
		{"of another type", "[cni]\ndefault_network = 1\n", ":2: cni.default_network: want true, false or \"auto\", have an integer"},
		{"list", "[image]\npinned = \"x\"\n", ":2: image.pinned: want a list of strings, have a string"},
		{"element", "[image]\npinned = [\"x\", 3]\n", ":2: image.pinned: want a list of strings, have an integer in it"},
		{"duration", "[streaming]\nidle_timeout = 3\n", ":2: streaming.idle_timeout: want a duration such as \"90s\", have an integer"},
		{"bad duration", "[streaming]\nidle_timeout = \"3 days\"\n", ":2: streaming.idle_timeout: want a duration such as \"90s\", have \"3 days\""},
		{"value for a table", "log = \"debug\"\n", ":1: log: want a table, have a string"},
		{"table for a value", "[root]\n", ":1: root: want a string, have a table"},
		{"level", "[log]\nlevel = \"loud\"\n", ":2: log.level: \"loud\" is none of debug, info, warn, error"},
		{"relative", "state = \"run\"\n", ":1: state: \"run\" is not an absolute path"},
		{"nested", "root = \"/run/crisp/x\"\n", "state: /run/crisp and root /run/crisp/x must not be one below the other"},
		{"address", "[streaming]\naddress = \"localhost\"\n", ":2: streaming.address: \"localhost\" is not host:port"},
		{"a subnet without room", "[cni]\npod_cidrs = [\"10.1.2.4/31\"]\n", ":2: cni.pod_cidrs: \"10.1.2.4/31\" has no room for pods"},
		{"an IPv6 subnet without room", "[cni]\npod_cidrs = [\"10.1.2.4/30\", \"fd00::2/127\"]\n", ":2: cni.pod_cidrs: \"fd00::2/127\" has no room for pods"},
		{"all addresses", "[cni]\npod_cidrs = [\"0.0.0.0/0\"]\n", "has no room for pods"},
		{"subnets", "[cni]\npod_cidrs = [\"10.1.2.3/16\"]\n", ":2: cni.pod_cidrs: \"10.1.2.3/16\" is not a subnet"},
		{"rlimit", "rlimits = [\"nofile=9:3\"]\n", ":1: rlimits: \"nofile=9:3\" is not a limit"},
		{"rlimit twice", "rlimits = [\"nofile=1\", \"core=1\", \"nofile=2\"]\n", ":1: rlimits: \"nofile=2\" is the second limit nofile"},
		{"endpoint", "[tracing]\nendpoint = \"https://unix:///x\"\n", ":2: tracing.endpoint: "},
		{"hooks", "log_max_line = 100\nhooks_dir = [\"/a\", \"b\"]\n", ":2: hooks_dir: \"b\" is not an absolute path"},
		{"cdi", "[cdi]\nspec_dirs = [\"cdi\"]\n", ":2: cdi.spec_dirs: \"cdi\" is not an absolute path"},
		{"sources", "reject_mount_sources = [\"etc\"]\n", ":1: reject_mount_sources: \"etc\" is not an absolute path"},
		{"cadvisor", "cadvisor_socket = \"off\"\n", ":1: cadvisor_socket: \"off\" is neither none nor an absolute path"},
		{"plugins", "[nri]\nsocket = \"nri.sock\"\n", ":2: nri.socket: \"nri.sock\" is not an absolute path"},
		{"handler's key", "[handlers.runc]\nengin = \"/x\"\n", ":2: handlers.runc.engin is not a key of the configuration"},
		{"handler's engine", "[handlers.runc]\nengine = \"runc\"\n", ":2: handlers.runc.engine: \"runc\" is neither libcontainer nor an absolute path"},
		{"handler's network", "[handlers.runc]\ncni_conf_dir = \"net.d\"\n", ":2: handlers.runc.cni_conf_dir: \"net.d\" is not an absolute path"},
		{"handler's cgroups", "[handlers.runc]\n\ncgroup_namespace = \"pod\"\n", ":3: handlers.runc.cgroup_namespace: \"pod\" is none of auto, private, host"},
		{"handler's name", "\n[handlers.Kata_2]\n", ":2: handlers.Kata_2: \"Kata_2\" is not a name"},
		{"default handler", "[handlers.crisp]\n", ":1: handlers.crisp: that is the default handler"},
		{"no handler", "[handlers]\nrunc = \"/usr/sbin/runc\"\n", ":2: handlers.runc is not a key of the configuration"},
		{"shim and engine", "[handlers.x]\nengine = \"/bin/runc\"\nshim = \"/bin/shim\"\n", ":2: handlers.x.engine: the handler has a shim ("},
		{"shim and the built-in engine", "[handlers.x]\nshim = \"/bin/shim\"\nengine = \"libcontainer\"\n", ":3: handlers.x.engine: the handler has a shim ("},
		{"shim by name", "[handlers.x]\nshim = \"containerd-shim-runc-v2\"\n", ":2: handlers.x.shim: \"containerd-shim-runc-v2\" is not an absolute path"},
		{"options without a shim", "[handlers.x]\noptions = \"/o\"\n", ":2: handlers.x.options: only a handler with a shim has this"},
		{"snapshot without a shim", "[handlers.x]\nsnapshot = \"mounts\"\n", ":2: handlers.x.snapshot: only a handler with a shim has this"},
		{"sandboxer without a shim", "[handlers.x]\nsandboxer = \"shim\"\n", ":2: handlers.x.sandboxer: only a handler with a shim has this"},
		{"sandboxer", "[handlers.x]\nshim = \"/s\"\nsandboxer = \"pod\"\n", ":3: handlers.x.sandboxer: \"pod\" is none of podsandbox, shim"},
		{"overhead without a shim", "[handlers.x]\noverhead = { cpu = \"1\" }\n", ":2: handlers.x.overhead.cpu: only a handler with a shim has this"},
		{"options that are a relative path", "[handlers.x]\nshim = \"/s\"\noptions = \"o.toml\"\n", ":3: handlers.x.options: \"o.toml\" is not an absolute path"},
		{"options without a type", "[handlers.x]\nshim = \"/s\"\n[handlers.x.options]\nBinaryName = \"runc\"\n", ":3: handlers.x.options: the table has no string type_url"},
		{"options of another type", "[handlers.x]\nshim = \"/s\"\noptions = 3\n", ":3: handlers.x.options: want the path of a file or a table, have an integer"},
		{"options with a date", "[handlers.x]\nshim = \"/s\"\noptions = { type_url = \"t\", a = { d = 2026-01-02T03:04:05Z } }\n", ":3: handlers.x.options: a: d: want strings, numbers, booleans, lists and tables, have a date"},
		{"snapshot", "[handlers.x]\nshim = \"/s\"\nsnapshot = \"overlay\"\n", ":3: handlers.x.snapshot: \"overlay\" is none of directory, mounts"},
		{"overhead", "[handlers.x]\nshim = \"/s\"\n[handlers.x.overhead]\nmemory = \"much\"\n", ":4: handlers.x.overhead.memory: \"much\" is not a quantity"},
		{"negative overhead", "[handlers.x]\nshim = \"/s\"\noverhead.cpu = \"-1\"\n", ":3: handlers.x.overhead.cpu: \"-1\" is not between 0 and"},
		{"overhead of another thing", "[handlers.x]\nshim = \"/s\"\noverhead.disk = \"1\"\n", ":3: handlers.x.overhead.disk is not a key of the configuration"},
		{"parallel", "[image]\nmax_parallel = 0\n", ":2: image.max_parallel: 0 is not between 1 and 64"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file := filepath.Join(write(t, map[string]string{"config.toml": tt.text}), "config.toml")
			_, err := config.Load(config.Source{File: file})
			if err == nil || !strings.Contains(err.Error(), tt.want) || (tt.want[0] == ':' && !strings.HasPrefix(err.Error(), file)) {
				t.Errorf("got  %v\nwant …%s", err, tt.want)
			}
		})
	}
}

// A file that is named explicitly must exist; the default one need not.
func TestNamedFileMustExist(t *testing.T) {
	_, err := config.Load(config.Source{File: filepath.Join(t.TempDir(), "none.toml")})
	if err == nil || !strings.Contains(err.Error(), "none.toml") {
		t.Errorf("got %v, want an error that names the file", err)
	}
}

// There should be few keys: a new one needs a reason why no default can be right. Keys for other
// programs' files (cdi.spec_dirs, hooks_dir) say where these are, nri.enabled is for nodes that
// must not have plugins, and nri.socket for nodes with two runtimes and plugins for both. A
// handler's keys count once: the three that repeat the node's, its program with what a shim is
// given, how it makes a sandbox and what it costs, and the annotations that it may get, since they let anyone
// who can create a pod decide how it is run. The destination of metrics and traces is known only to the
// administrator, and whether images may lose the owners of files.
func TestKeysAreFew(t *testing.T) {
	var count func(t reflect.Type) int
	count = func(t reflect.Type) int {
		n := 0
		for i := range t.NumField() {
			switch f := t.Field(i); {
			case f.Tag.Get("toml") == "":
			case f.Type.Kind() == reflect.Struct:
				n += count(f.Type)
			case f.Type.Kind() == reflect.Map:
				n += count(f.Type.Elem().Elem())
			default:
				n++
			}
		}
		return n
	}
	if n := count(reflect.TypeFor[config.Config]()); n > 55 {
		t.Errorf("%d keys, want at most 55", n)
	}
}
