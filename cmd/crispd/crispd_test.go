package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/config"
	"github.com/crisp-cri/crisp/internal/kernel"
	"github.com/crisp-cri/crisp/server/spec"
	"github.com/crisp-cri/crisp/server/telemetry"
	"github.com/crisp-cri/crisp/test/testenv"
)

// The socket of a killed crispd is replaced; one that is being served, and a file that is not a
// socket, are not.
func TestListen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dir", "crisp.sock")
	l, err := new(files).listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("mode %v, %v, want 0660", info.Mode().Perm(), err)
	}
	if second, err := new(files).listen(path); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a second listener: %v, %v, want an error", second, err)
	}
	l.Close()
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close() // as if killed
	again, err := new(files).listen(path)
	if err != nil {
		t.Fatalf("after a crash: %v", err)
	}
	again.Close()
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there after a clean end: %v", err)
	}

	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := new(files).listen(path); err == nil {
		t.Error("another program's file was replaced")
	}
	if data, _ := os.ReadFile(path); string(data) != "mine" {
		t.Errorf("the file has become %q", data)
	}
}

// Listening, as in a reload, does not change the modes of files that crispd makes
// meanwhile.
func TestListenKeepsUmask(t *testing.T) {
	dir := t.TempDir()
	listened := make(chan error, 1)
	go func() {
		for range 500 {
			l, err := new(files).listen(filepath.Join(dir, "s.sock"))
			if err != nil {
				listened <- err
				return
			}
			l.Close()
		}
		listened <- nil
	}()
	for {
		made := filepath.Join(dir, "made")
		if err := os.Mkdir(made, 0o711); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(made)
		if err != nil || info.Mode().Perm() != 0o711 {
			t.Fatalf("a directory got mode %v (err %v)", info.Mode(), err)
		}
		if err := os.Remove(made); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-listened:
			if err != nil {
				t.Fatal(err)
			}
			return
		default:
		}
	}
}

// Metrics move to the requested address, or stay where they are.
func TestScrape(t *testing.T) {
	tel, err := telemetry.New(telemetry.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	m := scrape{log: slog.New(slog.DiscardHandler), tel: tel, files: &files{}}
	defer m.end()
	answers := func(host, port string) bool {
		resp, err := http.Get("http://" + net.JoinHostPort(host, port) + "/metrics")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}
	_, port, _ := net.SplitHostPort(testenv.FreePort(t))
	if err := m.serve("127.0.0.1:" + port); err != nil || !answers("127.0.0.1", port) {
		t.Fatalf("on the loopback address: %v", err)
	}
	if err := m.serve("0.0.0.0:" + port); err != nil || !answers("127.0.0.2", port) {
		t.Errorf("on all addresses of the same port: %v", err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	if err := m.serve(taken.Addr().String()); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("where another listener is: %v", err)
	}
	if !answers("127.0.0.2", port) {
		t.Error("after that they are nowhere")
	}
	if err := m.serve(""); err != nil || answers("127.0.0.1", port) {
		t.Errorf("they are still served (err %v)", err)
	}
}

// An address that is not available yet is used once it is, unless another one was
// requested meanwhile.
func TestScrapeAwaits(t *testing.T) {
	tel, err := telemetry.New(telemetry.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	m := scrape{log: slog.New(slog.DiscardHandler), tel: tel, files: &files{}, retry: time.Millisecond}
	defer m.end()
	dir := t.TempDir()
	served := func(path string) bool {
		_, err := os.Lstat(path)
		return err == nil
	}
	// The file is in the way of the directory.
	block := func(name string) (file, address string) {
		file = filepath.Join(dir, name)
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		return file, filepath.Join(file, "metrics")
	}
	file, address := block("late")
	m.await(t.Context(), "unix://"+address)
	if served(address) {
		t.Fatal("they are served in a file")
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); !served(address); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("they are not served though they could be")
		}
	}
	m.end()

	// Not in a bubble, whose time would stand still while metrics are served.
	file, address = block("dropped")
	m.await(t.Context(), "unix://"+address)
	if err := m.serve(""); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * m.retry)
	if served(address) {
		t.Error("they are served where they were asked for before")
	}
}

// Two daemons with one directory would undo each other's work.
func TestOneCrispdPerDirectory(t *testing.T) {
	root, state := filepath.Join(t.TempDir(), "root"), filepath.Join(t.TempDir(), "state")
	first, err := takeFiles(root, state)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "other")
	if _, err := takeFiles(other, state); err == nil || !strings.Contains(err.Error(), "another crispd uses "+state) {
		t.Errorf("got %v", err)
	}
	first.close()
	// The refused one must have unlocked its own directory.
	next, err := takeFiles(other, state)
	if err != nil {
		t.Fatalf("after the first one's end: %v", err)
	}
	next.close()
}

// If crispd's sockets, locks or its whole state directory are removed, clients can still connect,
// and a second crispd cannot start.
func TestRemovedFilesArePutBack(t *testing.T) {
	top := t.TempDir()
	root, state := filepath.Join(top, "root"), filepath.Join(top, "state")
	f, err := takeFiles(root, state)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	cri, debug := filepath.Join(state, "crisp.sock"), filepath.Join(state, "debug.sock")
	socket, err := f.listen(cri)
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	private, err := f.listenForRoot(debug)
	if err != nil {
		t.Fatal(err)
	}
	defer private.Close()
	gone, err := f.listen(filepath.Join(state, "gone.sock")) // as after a reload that moved the metrics
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	locks := []string{filepath.Join(root, "crispd.lock"), filepath.Join(state, "crispd.lock")}
	for _, c := range []struct{ removed, want []string }{
		{nil, nil},
		{[]string{cri}, []string{cri}},
		{[]string{debug, locks[1]}, []string{locks[1], debug}},
		{[]string{state, root}, []string{locks[0], locks[1], cri, debug}},
	} {
		for _, path := range c.removed {
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
		}
		if again, err := f.look(); err != nil || !slices.Equal(again, c.want) {
			t.Fatalf("removed %q: put back %q (%v), want %q", c.removed, again, err, c.want)
		}
		for path, want := range map[string]os.FileMode{root: 0o711, state: 0o711, cri: 0o660, debug: 0o600, locks[0]: 0o600, locks[1]: 0o600} {
			if info, err := os.Lstat(path); err != nil || info.Mode().Perm() != want {
				t.Errorf("removed %q: %s has mode %v (%v), want %o", c.removed, path, info.Mode(), err, want)
			}
		}
	}
	if _, err := takeFiles(root, state); err == nil || !strings.Contains(err.Error(), "another crispd uses "+root) {
		t.Errorf("a second crispd: %v", err)
	}

	// A successor has taken over: recreated files are now its own.
	if err := errors.Join(os.Remove(locks[0]), os.Remove(locks[1]), os.Remove(cri)); err != nil {
		t.Fatal(err)
	}
	next, err := takeFiles(root, state)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := f.look(); err == nil || len(again) > 0 {
		t.Errorf("under a successor: put back %q, %v", again, err)
	}
	if _, err := os.Lstat(cri); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("under a successor the socket is put back (%v)", err)
	}
	next.close()

	f.close()
	if again, err := f.look(); err != nil || len(again) > 0 {
		t.Errorf("after the end: put back %q, %v", again, err)
	}
}

// A reload that moves a socket into a removed state directory recreates that with its mode, because
// users in user namespaces pass through it.
func TestListenMakesTheStateDirectoryAsItWas(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	f, err := takeFiles(state)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	if err := os.RemoveAll(state); err != nil {
		t.Fatal(err)
	}
	l, err := f.listen(filepath.Join(state, "metrics.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if info, err := os.Stat(state); err != nil || info.Mode().Perm() != 0o711 {
		t.Errorf("mode %v (%v), want 0711", info.Mode(), err)
	}
}

// Flags reach the configuration, and crispd config shows that.
func TestConfigCommand(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.toml")
	if err := os.WriteFile(file, []byte("[log]\nformat = \"json\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := run([]string{"config", "--config", file, "--root", "/r", "--state=/s", "--log-level", "debug"}, &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`root = "/r" # flag --root`, `state = "/s" # flag --state`, `socket = "/s/crisp.sock" # default`,
		`level = "debug" # flag --log-level`, `format = "json" # ` + file + ":2",
	} {
		if !strings.Contains(out.String(), want+"\n") {
			t.Errorf("no line %q in\n%s", want, out.String())
		}
	}
}

func TestBadCommandLines(t *testing.T) {
	for _, args := range [][]string{{"nonsense"}, {"config", "extra"}, {"config", "--log-level", "loud"}, {"--config", "/does/not/exist"}, {"check", "--all"},
		{"debug"}, {"debug", "nonsense"}, {"debug", "calls", "heap"}, {"debug", "profile", "--seconds", "0"}, {"wipe", "extra"}, {"completion"}, {"completion", "csh"}, {"version", "extra"}} {
		var out bytes.Buffer
		if err := run(args, &out); err == nil {
			t.Errorf("crispd %s succeeded", strings.Join(args, " "))
		}
	}
}

// check reports the consequence of everything that is missing, and fails only if crispd could not
// run.
func TestCheck(t *testing.T) {
	var out bytes.Buffer
	err := run([]string{"check", "--root", t.TempDir() + "/r", "--state", t.TempDir() + "/s"}, &out)
	var status exitStatus
	if !errors.As(err, &status) || status != 1 {
		// A test binary has no crisp-executor beside it: crispd could not run.
		t.Errorf("got %v, want exit status 1", err)
	}
	file := filepath.Join(t.TempDir(), "c.toml")
	for text, want := range map[string]string{
		"[handlers.x]\nengine = \"/does/not/exist\"\n":          ":2: handlers.x.engine: ",
		"[handlers.x]\nseccomp_profile = \"/does/not/exist\"\n": ":2: handlers.x.seccomp_profile: ",
		"[handlers.x]\n\ndefault_capabilities = [\"flying\"]\n": ":3: handlers.x.default_capabilities: ",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := run([]string{"check", "--config", file}, io.Discard); err == nil || !strings.HasPrefix(err.Error(), file+want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	if !strings.Contains(out.String(), "MISSING  crisp-executor") || !strings.Contains(out.String(), "cgroup controller") {
		t.Error(out.String())
	}
}

// A configured file about images that does not exist is reported, with the
// consequence.
func TestMissing(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "c.toml")
	load := func(text string) []string {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := config.Load(config.Source{File: file, Flags: map[string]string{"root": "/r", "state": "/s"}})
		if err != nil {
			t.Fatal(err)
		}
		return missing(c)
	}
	if got := load(""); len(got) > 0 {
		t.Errorf("of the defaults it says %q", got)
	}
	none := filepath.Join(dir, "none")
	for _, key := range []string{"registries_conf", "policy_dir", "registries_dir", "auth_file", "auth_dir", "decryption_keys_path"} {
		if got := load("[image]\n" + key + " = \"" + none + "\"\n"); len(got) != 1 || !strings.HasPrefix(got[0], file+":2: image."+key+": there is no "+none+": ") {
			t.Errorf("%s: it says %q", key, got)
		}
		if got := load("[image]\n" + key + " = \"" + dir + "\"\n"); len(got) > 0 {
			t.Errorf("%s: it says %q", key, got)
		}
	}
	if got := load("[image]\nhosts_dirs = [\"" + dir + "\", \"" + none + "\"]\n"); len(got) != 1 {
		t.Errorf("hosts_dirs: it says %q", got)
	}
}

// The node's own defaults are checked before the first container needs them, and the error says
// where they are set.
func TestHostFacts(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good, bad := write("good.json", `{"defaultAction": "SCMP_ACT_ALLOW"}`), write("bad.json", `{}`)
	load := func(text string) (spec.Host, error) {
		c, err := config.Load(config.Source{File: write("c.toml", text)})
		if err != nil {
			t.Fatal(err)
		}
		return hostFacts(c, kernel.Features{Capabilities: 1 << unix.CAP_KILL, OOMScoreAdj: -7})
	}
	h, err := load("default_capabilities = [\"kill\", \"CAP_CHOWN\"]\nrlimits = [\"nofile=5:-1\"]\nseccomp_profile = \"" + good + "\"\n")
	if err != nil {
		t.Fatal(err)
	}
	want := spec.Host{
		Capabilities: []string{"CAP_KILL"}, DefaultCapabilities: []string{"CAP_KILL", "CAP_CHOWN"}, MinOOMScoreAdj: -7,
		SeccompDefault: []byte(`{"defaultAction": "SCMP_ACT_ALLOW"}`),
		Rlimits:        []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 5, Hard: math.MaxUint64}},
	}
	if runtime.GOARCH == "amd64" {
		want.Arches = []specs.Arch{specs.ArchX86_64}
	}
	if diff := cmp.Diff(want, h); diff != "" {
		t.Error(diff)
	}
	for _, tt := range []struct{ text, want string }{
		{"\ndefault_capabilities = [\"flying\"]", "c.toml:2: default_capabilities: capability \"flying\" is not known"},
		{"seccomp_profile = \"" + bad + "\"", "c.toml:1: seccomp_profile: "},
		{"seccomp_profile = \"/does/not/exist\"", "c.toml:1: seccomp_profile: "},
	} {
		if _, err := load(tt.text); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %s", tt.text, err, tt.want)
		}
	}
}

// The default that the configuration prints is what containers get. An empty list means none, not
// the default.
func TestDefaultCapabilities(t *testing.T) {
	c, err := config.Load(config.Source{Flags: map[string]string{"root": "/r", "state": "/s"}})
	if err != nil {
		t.Fatal(err)
	}
	h, err := hostFacts(c, kernel.Features{})
	if err != nil || !cmp.Equal(h.DefaultCapabilities, spec.DefaultCapabilities()) {
		t.Errorf("got %v, %v", h.DefaultCapabilities, err)
	}
	c.DefaultCapabilities = []string{}
	if h, err = hostFacts(c, kernel.Features{}); err != nil || h.DefaultCapabilities == nil || len(h.DefaultCapabilities) > 0 {
		t.Errorf("none: got %v, %v", h.DefaultCapabilities, err)
	}
}

// An instance with its own directories does not collide with any other; the default
// one keeps the plain names.
func TestInstance(t *testing.T) {
	a, b := instance(&config.Config{Root: "/a", State: "/s"}), instance(&config.Config{Root: "/a", State: "/t"})
	if a == "" || b == "" || a == b {
		t.Errorf("instances %q and %q", a, b)
	}
	if got := instance(&config.Config{Root: config.DefaultRoot, State: config.DefaultState}); got != "" {
		t.Errorf("the default instance is %q", got)
	}
}

// The default instance has its pods' network namespaces where agents of CNI plugins
// look; any other instance touches nothing outside of its directories.
func TestNetNSDir(t *testing.T) {
	for state, want := range map[string]string{config.DefaultState: "/var/run/netns", "/tmp/s": "/tmp/s/netns"} {
		if got := netNSDir(&config.Config{Root: config.DefaultRoot, State: state}); got != want {
			t.Errorf("network namespaces of an instance with state %s are in %s, want %s", state, got, want)
		}
	}
}

func TestCgroupDriver(t *testing.T) {
	modern, old := kernel.Features{Systemd: true, CgroupV2: true}, kernel.Features{Systemd: true}
	for _, tt := range []struct {
		driver string
		host   kernel.Features
		want   bool
	}{{"auto", modern, true}, {"auto", old, false}, {"auto", kernel.Features{CgroupV2: true}, false}, {"systemd", old, true}, {"cgroupfs", modern, false}} {
		if got := usesSystemd(&config.Config{CgroupDriver: tt.driver}, tt.host); got != tt.want {
			t.Errorf("%s on %+v: %v", tt.driver, tt.host, got)
		}
	}
}

// Libraries log through logrus; their lines must look like ours.
func TestLogrusBridge(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelInfo}))
	l := logrus.New()
	l.SetOutput(&bytes.Buffer{})
	l.SetLevel(logrus.DebugLevel)
	l.AddHook(bridge{log})
	l.WithField("file", "x").Warn("odd")
	l.Debug("not shown")
	var line struct{ Level, Msg, File string }
	if err := json.Unmarshal(out.Bytes(), &line); err != nil || line.Level != "WARN" || line.Msg != "odd" || line.File != "x" {
		t.Errorf("got %s (%v)", out.String(), err)
	}
}

// wipe must not delete the content of mounts below our directories, which may be a user's data.
func TestWipeSparesMounts(t *testing.T) {
	testenv.NeedRoot(t, "it mounts")
	root := t.TempDir()
	mounted := filepath.Join(root, "data")
	if err := os.Mkdir(mounted, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", mounted, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(mounted, unix.MNT_DETACH)
	file := filepath.Join(mounted, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	w := wiping{c: &config.Config{Root: root, State: t.TempDir()}, out: &out}
	w.remove(t.Context(), root)
	if len(w.errs) != 1 || !strings.Contains(w.errs[0].Error(), "is still mounted") {
		t.Errorf("got %v", w.errs)
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("the file is gone: %v", err)
	}
	w.errs = nil
	w.unmount()
	w.remove(t.Context(), root)
	if len(w.errs) > 0 {
		t.Errorf("after unmounting: %v", w.errs)
	}
	if _, err := os.Stat(root); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is still there: %v", err)
	}
}

// /var/lib/crisp is often a separate disk: wipe empties it and keeps the mount.
func TestWipeOfAMountedRoot(t *testing.T) {
	testenv.NeedRoot(t, "it mounts")
	root := t.TempDir()
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(root, unix.MNT_DETACH)
	if err := os.MkdirAll(filepath.Join(root, "images", "layers"), 0o700); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	w := wiping{c: &config.Config{Root: root, State: t.TempDir()}, out: &out}
	w.remove(t.Context(), root)
	if left, err := os.ReadDir(root); len(w.errs) > 0 || len(left) > 0 || err != nil {
		t.Errorf("left %v, errors %v (%v)", left, w.errs, err)
	}
}
