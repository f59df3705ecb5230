package apparmor

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/kernel"
	"github.com/crisp-cri/crisp/test/testenv"
)

// fake returns the Profiles of a host whose kernel has two profiles, with a parser that records its
// calls and loads the profile own.
func fake(t *testing.T, status string) *Profiles {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("profiles", "/usr/sbin/cups (enforce)\nwith blank (complain)\n", 0o644)
	parser := write("parser", `#!/bin/sh
cd "`+dir+`"; echo "$@" > args; cat > src; echo said something >&2
test `+status+` = 0 && echo "own (enforce)" >> profiles
exit `+status+"\n", 0o755)
	return &Profiles{own: "own", dir: dir, parser: parser}
}

func (p *Profiles) file(t *testing.T, name string) string {
	b, err := os.ReadFile(filepath.Join(p.dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestCheck(t *testing.T) {
	for _, test := range []struct {
		profile string
		want    error
	}{
		{"", nil},
		{Unconfined, nil},
		{"/usr/sbin/cups", nil},
		{"with blank", nil},
		{"with", fault.Invalid},
		{"/usr/sbin", fault.Invalid},
		{"mine", fault.Invalid},
	} {
		if err := fake(t, "0").Check(t.Context(), test.profile); !errors.Is(err, test.want) {
			t.Errorf("%q: %v, want %v", test.profile, err, test.want)
		}
	}
}

// If the profile that crispd has loaded is unloaded, it is loaded again: containers must not run
// without it.
func TestDefaultIsLoadedAgain(t *testing.T) {
	p := fake(t, "0")
	if err := p.Check(t.Context(), "own"); err != nil {
		t.Fatal(err)
	}
	if got := p.file(t, "args"); !strings.Contains(got, "--replace") {
		t.Errorf("the parser was called with %q, which does not replace", got)
	}
	if got := p.file(t, "src"); !strings.Contains(got, "profile own flags") || strings.Contains(got, "NAME") {
		t.Errorf("the parser's input was\n%s", got)
	}
	if err := os.Remove(filepath.Join(p.dir, "args")); err != nil {
		t.Fatal(err)
	}
	if err := p.Check(t.Context(), "own"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(p.dir, "args")); err == nil {
		t.Error("a profile that is loaded was loaded again")
	}
	if err := p.Unload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := p.file(t, "args"); !strings.Contains(got, "--remove") {
		t.Errorf("the parser was called with %q, which does not remove", got)
	}
}

func TestParserFails(t *testing.T) {
	if err := fake(t, "1").Load(t.Context()); err == nil || !strings.Contains(err.Error(), "said something") {
		t.Errorf("error %v, want one with the parser's output", err)
	}
	p := fake(t, "0")
	p.parser = ""
	if err := p.Check(t.Context(), "own"); !errors.Is(err, fault.Unavailable) {
		t.Errorf("without a parser: %v, want unavailable", err)
	}
	for _, name := range []string{"", "a b", "a\nb", "a{b"} {
		if src, err := profile(name); err == nil {
			t.Errorf("a profile of the name %q: %s", name, src)
		}
	}
}

// The kernel accepts the profile, and lists it.
func TestLoad(t *testing.T) {
	if !testenv.Root() || !kernel.Probe().AppArmor || Parser() == "" {
		t.Skip("needs root, AppArmor and apparmor_parser")
	}
	p := New("crisp-test-load")
	defer p.Unload(t.Context())
	for range 2 {
		if err := p.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if ok, err := p.loaded(p.own); !ok || err != nil {
		t.Fatalf("loaded: %v, %v", ok, err)
	}
	if err := p.Unload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if ok, err := p.loaded(p.own); ok || err != nil {
		t.Fatalf("loaded after its removal: %v, %v", ok, err)
	}
}

// The profile denies the paths in /sys that Kubernetes masks because they reveal secrets of the
// machine: a pod with procMount Unmasked has no masks.
func TestProfileDeniesWhatIsMasked(t *testing.T) {
	denied := regexp.MustCompile(`(?m)^  deny (/sys/\S+)/\{,\*\*\} rwlkx,$`).FindAllStringSubmatch(text, -1)
	for _, masked := range []string{"/sys/firmware", "/sys/devices/virtual/powercap"} {
		if !slices.ContainsFunc(denied, func(m []string) bool { return m[1] == masked }) {
			t.Errorf("%s is not denied, but for %q", masked, denied)
		}
	}
}
