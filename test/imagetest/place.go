// Package imagetest has the fixtures for tests of image and its parts: generated images,
// a registry in this process that can be made to misbehave, and a Place, which is a
// store with its configuration, and checks at the end of the test that nothing was left.
package imagetest

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/checkpoint"
	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/image/rootfs"
	"github.com/crisp-cri/crisp/test/testenv"
	"golang.org/x/sys/unix"
)

// NeedRoot skips a test that is not run as root.
func NeedRoot(t testing.TB) {
	t.Helper()
	testenv.NeedRoot(t, "layers have owners and are mounted")
}

// A place is a directory with a store, which a test can reopen.
type place struct {
	t     testing.TB
	Dir   string
	Store *image.Store
	Log   *slog.Logger // of the stores opened from now on; nil: the test's
}

// NewPlace opens a store that pulls from the registries. When the test ends, nothing of
// it may be left.
func NewPlace(t testing.TB, registries ...*Registry) *place {
	t.Helper()
	NeedRoot(t)
	p := &place{t: t, Dir: t.TempDir()}
	conf := `unqualified-search-registries = ["docker.io"]` + "\n"
	for _, r := range registries {
		conf += fmt.Sprintf("[[registry]]\nlocation = %q\ninsecure = true\n", r.Host)
	}
	p.Configure(conf)
	t.Cleanup(func() {
		if p.Store != nil {
			for _, key := range p.Store.RootFS().Mounts() {
				if err := p.Store.RootFS().Unmount(t.Context(), key, true); err != nil {
					t.Error(err)
				}
			}
			p.Swept("gone-") // a layer of a failed pull is kept until the store closes
			p.Close()
		}
		p.isClean()
	})
	p.Open(image.Options{})
	return p
}

func (p *place) Configure(conf string) {
	p.t.Helper()
	if err := os.WriteFile(filepath.Join(p.Dir, "registries.conf"), []byte(conf), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

func (p *place) Root() string { return filepath.Join(p.Dir, "store") }

// Open opens the store with o, in which only relevant options are set.
func (p *place) Open(o image.Options) {
	p.t.Helper()
	log := p.Log
	if log == nil {
		log = slog.New(slog.NewTextHandler(p.t.Output(), nil))
	}
	records, err := checkpoint.Open(filepath.Join(p.Dir, "records"), "", log)
	if err != nil {
		p.t.Fatal(err)
	}
	if o.Layers == "" {
		o.Layers = Layers
	}
	o.Root, o.State, o.Records, o.Log = p.Root(), filepath.Join(p.Dir, "state"), records, log
	o.RegistriesConf = filepath.Join(p.Dir, "registries.conf")
	o.RegistriesConfDir = filepath.Join(p.Dir, "registries.conf.d")
	if o.AuthFile == "" {
		o.AuthFile = filepath.Join(p.Dir, "auth.json")
	}
	if o.PolicyPath == "" {
		o.PolicyPath = filepath.Join(p.Dir, "policy.json")
		accept := `{"default":[{"type":"insecureAcceptAnything"}]}`
		if err := os.WriteFile(o.PolicyPath, []byte(accept), 0o600); err != nil {
			p.t.Fatal(err)
		}
	}
	if p.Store, err = image.Open(p.t.Context(), o); err != nil {
		p.t.Fatal(err)
	}
}

func (p *place) Close() {
	p.t.Helper()
	if err := p.Store.Close(); err != nil {
		p.t.Error(err)
	}
	p.Store = nil
}

// Reopen does what a restart of the daemon does.
func (p *place) Reopen(o image.Options) {
	p.t.Helper()
	p.Close()
	p.Open(o)
}

func (p *place) Pull(ref string) image.Image {
	p.t.Helper()
	img, err := p.Store.Pull(p.t.Context(), ref, registry.Caller{})
	if err != nil {
		p.t.Fatalf("pull %s: %v", ref, err)
	}
	return img
}

// Mount mounts an image and returns the root.
func (p *place) Mount(key, id string) string {
	p.t.Helper()
	root, err := p.Store.RootFS().Mount(p.t.Context(), key, id, rootfs.MountOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	return root
}

// Layers counts the layers on disk.
func (p *place) Layers() int { return len(p.Names("layers")) }

func (p *place) Names(dir string) []string {
	p.t.Helper()
	entries, err := os.ReadDir(filepath.Join(p.Root(), dir))
	if err != nil {
		p.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// isClean fails the test if a closed store has a mount, unfinished work on disk,
// or a layer that no image accounts for.
func (p *place) isClean() {
	p.t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		p.t.Fatal(err)
	}
	state := filepath.Join(p.Dir, "state")
	for line := range strings.Lines(string(mounts)) {
		// The mount that makes state private, where systemd shares all mounts, ends with
		// the daemon's directory; here it is unmounted.
		if strings.Fields(line)[4] == state {
			if err := unix.Unmount(state, unix.MNT_DETACH); err != nil {
				p.t.Errorf("unmount %s: %v", state, err)
			}
		} else if strings.Contains(line, state) {
			p.t.Errorf("still mounted: %s", line)
		}
	}
	for _, name := range p.Names("staging") {
		if !strings.HasPrefix(name, "gone-") { // that is removed after the next start
			p.t.Errorf("staging holds %s", name)
		}
	}
	p.Open(image.Options{})
	p.Swept("")
	before := p.Layers()
	p.Close()
	if after := p.Layers(); after != before {
		p.t.Errorf("%d layers had no owner", before-after)
	}
}

// Swept waits until everything that was dropped and whose name begins with prefix has
// been removed from the disk.
func (p *place) Swept(prefix string) {
	p.t.Helper()
	var left []string
	for range 3000 {
		left = slices.DeleteFunc(p.Names("staging"), func(name string) bool { return !strings.HasPrefix(name, prefix) })
		if len(left) == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	p.t.Errorf("staging holds %v", left)
}

// ReadFile returns the content of a file, whose path is joined; the test fails without
// it.
func ReadFile(t testing.TB, path ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// Mirrored makes mirror a mirror of origin that is asked first.
func (p *place) Mirrored(origin, mirror *Registry) {
	p.t.Helper()
	p.Configure(fmt.Sprintf(`
		[[registry]]
		location = %q
		insecure = true
		[[registry.mirror]]
		location = %q
		insecure = true`, origin.Host, mirror.Host))
}

// Trusting reopens p with directories for policies, credentials and keys, and with
// signatures beside the images.
func (p *place) Trusting(o image.Settings) {
	p.t.Helper()
	WriteFile(p.t, filepath.Join(p.Dir, "registries.d", "all.yaml"), "default-docker:\n  use-sigstore-attachments: true\n")
	o.RegistriesDir = filepath.Join(p.Dir, "registries.d")
	o.PolicyDir = filepath.Join(p.Dir, "policies")
	o.AuthDir = filepath.Join(p.Dir, "auth")
	if o.KeysDir == "" {
		o.KeysDir = filepath.Join(p.Dir, "keys")
	}
	p.Reopen(image.Options{Settings: o})
}
