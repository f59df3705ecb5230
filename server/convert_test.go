package server

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
)

// Every signal of CRI is a signal of Linux, whatever its constant is called, and is converted back
// to itself unless CRI has two names for it.
func TestSignals(t *testing.T) {
	second := map[string]bool{"SIGNAL_SIGCLD": true, "SIGNAL_SIGIOT": true, "SIGNAL_SIGPOLL": true}
	for number, name := range cri.Signal_name {
		s := cri.Signal(number)
		sig, ok := linuxSignal(s)
		if s == cri.Signal_SIGNAL_RUNTIME_DEFAULT {
			if ok {
				t.Errorf("%s is signal %d", name, sig)
			}
			continue
		}
		if !ok || sig <= 0 || sig > 64 {
			t.Errorf("%s is %d, %v", name, sig, ok)
			continue
		}
		// The name in the text is spelled as in 0.37.
		text := strings.NewReplacer("SIGNAL_", "", "PLUS", "+", "MINUS", "-").Replace(name)
		if parsed, ok := parseSignal(text); !second[name] && (!ok || parsed != sig) {
			t.Errorf("%s parses as %d, %v; want %d", text, parsed, ok, sig)
		}
		if back, ok := criSignal(sig); !second[name] && (!ok || back != s) {
			t.Errorf("%s comes back as %s, %v", name, back, ok)
		}
	}
	for text, want := range map[string]unix.Signal{
		"15": unix.SIGTERM, "term": unix.SIGTERM, "SIGKILL": unix.SIGKILL, "SIGRTMIN+3": 37, "RTMAX-2": 62, "SIGRTMIN": 34,
		"": 0, "0": 0, "65": 0, "SIGNONE": 0, "RTMIN+31": 0, "RTMAX+1": 0, "RTMIN+x": 0, "-9": 0,
	} {
		got, ok := parseSignal(text)
		if ok != (want != 0) || ok && got != want {
			t.Errorf("%q parses as %d, %v; want %d", text, got, ok, want)
		}
	}
	if s, err := stopSignal(cri.Signal_SIGNAL_SIGINT, "SIGQUIT"); err != nil || s != cri.Signal_SIGNAL_SIGINT {
		t.Errorf("request over image: %v, %v", s, err)
	}
	if s, err := stopSignal(0, ""); err != nil || s != cri.Signal_SIGNAL_SIGTERM {
		t.Errorf("nothing said: %v, %v", s, err)
	}
}

func TestCgroupParent(t *testing.T) {
	for _, c := range []struct {
		parent  string
		systemd bool
		want    string
		bad     bool
	}{
		{"", false, "", false},
		{"", true, "", false},
		{"/kubepods/pod1", false, "/kubepods/pod1", false},
		{"kubepods/pod1", false, "/kubepods/pod1", false},
		{"/../../etc", false, "/etc", false},
		{"/kubepods.slice/kubepods-pod1.slice", true, "kubepods-pod1.slice", false},
		{"kubepods-pod1.slice", true, "kubepods-pod1.slice", false},
		{"/kubepods/pod1", true, "", true},
		{"/kubepods.slice/kubepods-pod1.slice", false, "", true},
	} {
		got, err := cgroupParent(c.parent, c.systemd)
		if got != c.want || (err != nil) != c.bad {
			t.Errorf("cgroupParent(%q, %v) = %q, %v; want %q", c.parent, c.systemd, got, err, c.want)
		}
	}
}

// The rate is the usage between two measurements. Measurements that are too close together do not
// make it jump.
func TestCPURate(t *testing.T) {
	var r cpuRates
	start := time.Unix(1000, 0)
	at := func(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }
	for _, c := range []struct {
		when float64
		used uint64
		want uint64
	}{
		{10, 5e9, 5e8},     // half a CPU since the start
		{10.2, 5.2e9, 5e8}, // too soon after the last
		{12, 9e9, 2e9},     // two CPUs
		{13, 8e9, 2e9},     // a decreasing counter is ignored
	} {
		if got := r.rate("a", at(c.when), c.used, start); got != c.want {
			t.Errorf("at %vs: %d nanocores, want %d", c.when, got, c.want)
		}
	}
	// The start is in the future if the clock was set back after it.
	r.rate("b", at(10), 5e9, at(3600))
	if got := r.rate("b", at(12), 6e9, at(3600)); got != 5e8 {
		t.Errorf("after the clock was set back: %d nanocores, want %d", got, int(5e8))
	}
	r.forget("a")
	r.forget("b")
	if len(r.seen) != 0 {
		t.Error("remembered what is gone")
	}
}

// The account files come from an image: no link leads out of its root, to the kernel's log for example,
// and what could block or have no end is not read.
func TestOpenInRoot(t *testing.T) {
	root, outside := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := func(to, name string) {
		t.Helper()
		if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	write("real", "inside")
	link("/real", "absolute") // of the image's root, not of ours
	link(filepath.Join(outside, "secret"), "out")
	link("../../../../../../"+outside+"/secret", "up")
	link("/proc/kmsg", "log")
	link("/sys/kernel/notes", "notes")
	write("huge", "")
	if err := errors.Join(unix.Mkfifo(filepath.Join(root, "pipe"), 0o600), os.Truncate(filepath.Join(root, "huge"), maxAccounts+1)); err != nil {
		t.Fatal(err)
	}
	refused := []string{"pipe", "huge", "."}
	if unix.Mknod(filepath.Join(root, "zero"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))) == nil { // as root
		refused = append(refused, "zero")
	}
	read := func(name string) (string, error) {
		r, err := openInRoot(root, name)
		if err != nil {
			return "", err
		}
		defer r.Close()
		var b strings.Builder
		if _, err := io.Copy(&b, r); err != nil {
			return "", err
		}
		return b.String(), nil
	}
	for name, want := range map[string]string{"real": "inside", "absolute": "inside", "out": "", "up": "", "log": "", "notes": "", "none": "", "real/below": ""} {
		if got, err := read(name); got != want || err != nil {
			t.Errorf("%s: %q, %v; want %q", name, got, err, want)
		}
	}
	for _, name := range refused {
		if _, err := read(name); !errors.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The layer of mount points has files for the sandbox's; a directory that a pod mounts there could not
// be attached to one.
func TestMountsFiles(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "hosts")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		at, source string
		want       bool
	}{
		{"/etc/hosts", file, true}, {"/etc/hosts", dir, false}, {"/etc//resolv.conf/", dir, false},
		{"/etc/hostname", filepath.Join(dir, "missing"), false}, {"/etc/hosts", "", false}, {"/data", dir, true}, {"/etc", dir, true},
	} {
		if got := mountsFiles([]*cri.Mount{{ContainerPath: "/x", HostPath: dir}, {ContainerPath: c.at, HostPath: c.source}}); got != c.want {
			t.Errorf("%s mounted at %s: %v", c.source, c.at, got)
		}
	}
}
