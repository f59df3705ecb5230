package image_test

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
	"golang.org/x/sys/unix"
)

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: layers have owners and are mounted")
	}
}

// A place is a directory with a store, which a test can open again.
type place struct {
	t     testing.TB
	dir   string
	store *image.Store
	log   *slog.Logger // of the stores opened from now on; nil: the test's
}

// newPlace opens a store that pulls from the registries. When the test ends,
// nothing may be left of it.
func newPlace(t testing.TB, registries ...*fakeRegistry) *place {
	t.Helper()
	needRoot(t)
	p := &place{t: t, dir: t.TempDir()}
	conf := `unqualified-search-registries = ["docker.io"]` + "\n"
	for _, r := range registries {
		conf += fmt.Sprintf("[[registry]]\nlocation = %q\ninsecure = true\n", r.host)
	}
	p.configure(conf)
	t.Cleanup(func() {
		if p.store != nil {
			for _, key := range p.store.RootFS().Mounts() {
				if err := p.store.RootFS().Unmount(t.Context(), key, true); err != nil {
					t.Error(err)
				}
			}
			p.swept("gone-") // a layer of a failed pull is kept until the store closes
			p.close()
		}
		p.isClean()
	})
	p.open(image.Options{})
	return p
}

func (p *place) configure(conf string) {
	p.t.Helper()
	if err := os.WriteFile(filepath.Join(p.dir, "registries.conf"), []byte(conf), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

func (p *place) root() string { return filepath.Join(p.dir, "store") }

// open opens the store with o, in which only what matters is set.
func (p *place) open(o image.Options) {
	p.t.Helper()
	log := p.log
	if log == nil {
		log = slog.New(slog.NewTextHandler(p.t.Output(), nil))
	}
	records, err := checkpoint.Open(filepath.Join(p.dir, "records"), log)
	if err != nil {
		p.t.Fatal(err)
	}
	o.Root, o.State, o.Records, o.Log = p.root(), filepath.Join(p.dir, "state"), records, log
	o.RegistriesConf = filepath.Join(p.dir, "registries.conf")
	o.RegistriesConfDir = filepath.Join(p.dir, "registries.conf.d")
	if o.AuthFile == "" {
		o.AuthFile = filepath.Join(p.dir, "auth.json")
	}
	if o.PolicyPath == "" {
		o.PolicyPath = filepath.Join(p.dir, "policy.json")
		accept := `{"default":[{"type":"insecureAcceptAnything"}]}`
		if err := os.WriteFile(o.PolicyPath, []byte(accept), 0o600); err != nil {
			p.t.Fatal(err)
		}
	}
	if p.store, err = image.Open(p.t.Context(), o); err != nil {
		p.t.Fatal(err)
	}
}

func (p *place) close() {
	p.t.Helper()
	if err := p.store.Close(); err != nil {
		p.t.Error(err)
	}
	p.store = nil
}

// reopen is what a restart of the daemon does.
func (p *place) reopen(o image.Options) {
	p.t.Helper()
	p.close()
	p.open(o)
}

func (p *place) pull(ref string) image.Image {
	p.t.Helper()
	img, err := p.store.Pull(p.t.Context(), ref, registry.Caller{})
	if err != nil {
		p.t.Fatalf("pull %s: %v", ref, err)
	}
	return img
}

// mount mounts an image and returns the root.
func (p *place) mount(key, id string) string {
	p.t.Helper()
	root, err := p.store.RootFS().Mount(p.t.Context(), key, id, rootfs.MountOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	return root
}

// layers counts the layers on disk.
func (p *place) layers() int { return len(p.names("layers")) }

func (p *place) names(dir string) []string {
	p.t.Helper()
	entries, err := os.ReadDir(filepath.Join(p.root(), dir))
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
	state := filepath.Join(p.dir, "state")
	for line := range strings.Lines(string(mounts)) {
		// What makes state private where systemd shares all mounts goes with the daemon's
		// directory; here it goes now.
		if strings.Fields(line)[4] == state {
			if err := unix.Unmount(state, unix.MNT_DETACH); err != nil {
				p.t.Errorf("unmount %s: %v", state, err)
			}
		} else if strings.Contains(line, state) {
			p.t.Errorf("still mounted: %s", line)
		}
	}
	for _, name := range p.names("staging") {
		if !strings.HasPrefix(name, "gone-") { // that is removed after the next start
			p.t.Errorf("staging holds %s", name)
		}
	}
	p.open(image.Options{})
	p.swept("")
	before := p.layers()
	p.close()
	if after := p.layers(); after != before {
		p.t.Errorf("%d layers belonged to nobody", before-after)
	}
}

// swept waits until what was dropped is removed from the disk, of all that begins with
// prefix.
func (p *place) swept(prefix string) {
	p.t.Helper()
	var left []string
	for range 3000 {
		left = slices.DeleteFunc(p.names("staging"), func(name string) bool { return !strings.HasPrefix(name, prefix) })
		if len(left) == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	p.t.Errorf("staging holds %v", left)
}

func read(t testing.TB, path ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// mirrored has what is in origin looked for in mirror first.
func (p *place) mirrored(origin, mirror *fakeRegistry) {
	p.t.Helper()
	p.configure(fmt.Sprintf(`
		[[registry]]
		location = %q
		insecure = true
		[[registry.mirror]]
		location = %q
		insecure = true`, origin.host, mirror.host))
}

// trusting opens p again with directories for policies, credentials and keys, and
// signatures beside the images.
func (p *place) trusting(o image.Settings) {
	p.t.Helper()
	write(p.t, filepath.Join(p.dir, "registries.d", "all.yaml"), "default-docker:\n  use-sigstore-attachments: true\n")
	o.RegistriesDir = filepath.Join(p.dir, "registries.d")
	o.PolicyDir = filepath.Join(p.dir, "policies")
	o.AuthDir = filepath.Join(p.dir, "auth")
	if o.KeysDir == "" {
		o.KeysDir = filepath.Join(p.dir, "keys")
	}
	p.reopen(image.Options{Settings: o})
}
