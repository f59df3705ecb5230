package image_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/checkpoint"
	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/image/rootfs"
	ggcr "github.com/google/go-containerregistry/pkg/registry"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: layers have owners and are mounted")
	}
}

// A fakeRegistry is a registry in this process that can be made to misbehave.
type fakeRegistry struct {
	t    testing.TB
	host string

	mu       sync.Mutex
	in       map[string]bool                                          // repository and digest of what was pushed
	requests []string                                                 // "GET /v2/…" since the last call of asked
	before   func(w http.ResponseWriter, r *http.Request) (done bool) // called first for each request
}

func newRegistry(t testing.TB) *fakeRegistry {
	t.Helper()
	r := &fakeRegistry{t: t}
	inner := ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0)))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		r.requests = append(r.requests, req.Method+" "+req.URL.Path)
		before := r.before
		r.mu.Unlock()
		if before != nil && before(w, req) {
			return
		}
		// The registry in it has one heap of blobs for all repositories; real ones have not.
		if repo, d, ok := strings.Cut(req.URL.Path, "/blobs/sha256:"); ok && req.Method == http.MethodGet && !r.pushed(repo+d) {
			http.Error(w, `{"errors":[{"code":"BLOB_UNKNOWN"}]}`, http.StatusNotFound)
			return
		}
		inner.ServeHTTP(w, req)
	}))
	t.Cleanup(srv.Close)
	r.host = strings.TrimPrefix(srv.URL, "http://")
	return r
}

// pushed tells whether a repository has a blob: the path and its digest in hex.
func (r *fakeRegistry) pushed(blob string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.in[blob]
}

// intercept has f called for each request, before the registry sees it.
func (r *fakeRegistry) intercept(f func(w http.ResponseWriter, req *http.Request) (done bool)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.before = f
}

// asked returns the paths that were read since the last call and contain part.
func (r *fakeRegistry) asked(part string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var got []string
	for _, req := range r.requests {
		if strings.HasPrefix(req, "GET ") && strings.Contains(req, part) {
			got = append(got, req)
		}
	}
	r.requests = nil
	return got
}

func (r *fakeRegistry) put(path, kind string, data []byte) {
	r.t.Helper()
	req, err := http.NewRequest(http.MethodPut, "http://"+r.host+path, bytes.NewReader(data))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Content-Type", kind)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode >= 300 {
		r.t.Fatalf("put %s: %s", path, resp.Status)
	}
}

// pushBlob puts a blob into a repository.
func (r *fakeRegistry) pushBlob(repo string, data []byte) {
	r.t.Helper()
	resp, err := http.Post("http://"+r.host+"/v2/"+repo+"/blobs/uploads/", "", nil)
	if err != nil {
		r.t.Fatal(err)
	}
	resp.Body.Close()
	r.mu.Lock()
	if r.in == nil {
		r.in = make(map[string]bool)
	}
	r.in["/v2/"+repo+digest.FromBytes(data).Encoded()] = true
	r.mu.Unlock()
	r.put(resp.Header.Get("Location")+"?digest="+digest.FromBytes(data).String(), "application/octet-stream", data)
}

// push puts an image into repo under tag, and returns the manifest's digest.
func (r *fakeRegistry) push(repo, tag string, img *built) digest.Digest {
	r.t.Helper()
	for _, data := range append(img.blobs, img.config) {
		r.pushBlob(repo, data)
	}
	r.put("/v2/"+repo+"/manifests/"+tag, img.desc.MediaType, img.manifest)
	return img.desc.Digest
}

// pushIndex puts a list of images into repo under tag, and returns its digest.
func (r *fakeRegistry) pushIndex(repo, tag string, imgs ...*built) digest.Digest {
	r.t.Helper()
	index := v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex}
	for _, img := range imgs {
		r.push(repo, img.desc.Digest.String(), img)
		index.Manifests = append(index.Manifests, img.desc)
	}
	data := mustJSON(r.t, index)
	r.put("/v2/"+repo+"/manifests/"+tag, v1.MediaTypeImageIndex, data)
	return digest.FromBytes(data)
}

// A built image is one that a test made.
type built struct {
	config   []byte
	blobs    [][]byte // of the layers, compressed
	plain    [][]byte
	manifest []byte
	desc     v1.Descriptor
}

func (b *built) id() string { return digest.FromBytes(b.config).String() }

// build makes an image with one layer for each text, which is the content of the
// file "layer<n>" in it and of the file "top".
func build(t testing.TB, compression string, texts ...string) *built {
	t.Helper()
	var layers [][]byte
	for i, text := range texts {
		layers = append(layers, tarOf(t, map[string]string{fmt.Sprintf("layer%d", i): text, "top": text}))
	}
	return buildOf(t, compression, v1.Image{}, layers...)
}

// buildOf makes an image with these layers.
func buildOf(t testing.TB, compression string, cfg v1.Image, layers ...[]byte) *built {
	t.Helper()
	b := &built{plain: layers}
	if cfg.OS == "" {
		cfg.OS, cfg.Architecture = "linux", "amd64"
	}
	cfg.RootFS.Type = "layers"
	m := v1.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest}
	for _, layer := range layers {
		data, kind := compress(t, compression, layer)
		b.blobs = append(b.blobs, data)
		cfg.RootFS.DiffIDs = append(cfg.RootFS.DiffIDs, digest.FromBytes(layer))
		m.Layers = append(m.Layers, v1.Descriptor{MediaType: kind, Digest: digest.FromBytes(data), Size: int64(len(data))})
	}
	b.config = mustJSON(t, cfg)
	m.Config = v1.Descriptor{MediaType: v1.MediaTypeImageConfig, Digest: digest.FromBytes(b.config), Size: int64(len(b.config))}
	b.manifest = mustJSON(t, m)
	b.desc = v1.Descriptor{MediaType: m.MediaType, Digest: digest.FromBytes(b.manifest), Size: int64(len(b.manifest)),
		Platform: &v1.Platform{OS: cfg.OS, Architecture: cfg.Architecture}}
	return b
}

func compress(t testing.TB, compression string, data []byte) ([]byte, string) {
	t.Helper()
	var buf bytes.Buffer
	var w io.WriteCloser
	kind := v1.MediaTypeImageLayer
	switch compression {
	case "plain":
		return data, kind
	case "gzip":
		w, kind = gzip.NewWriter(&buf), v1.MediaTypeImageLayerGzip
	case "zstd":
		z, err := zstd.NewWriter(&buf)
		if err != nil {
			t.Fatal(err)
		}
		w, kind = z, v1.MediaTypeImageLayerZstd
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes(), kind
}

func tarOf(t testing.TB, files map[string]string) []byte {
	t.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, name := range slices.Sorted(maps.Keys(files)) { // the digest must not vary
		content := files[name]
		hdr := &tar.Header{Name: name, Mode: 0o644, Size: int64(len(content)), ModTime: time.Unix(1_500_000_000, 0)}
		if strings.HasSuffix(name, "/") {
			hdr.Typeflag, hdr.Mode = tar.TypeDir, 0o755
		}
		if err := tw.WriteHeader(hdr); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tw, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func mustJSON(t testing.TB, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
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
