package image_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/image/rootfs"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/test/imagetest"
)

// The beginning of a module, and of a component.
const (
	moduleBytes    = "\x00asm\x01\x00\x00\x00"
	componentBytes = "\x00asm\x0d\x00\x01\x00"
)

// A wasmLayer is a layer of a test's image: a module, or a tar.
type wasmLayer struct{ kind, title, data string }

// buildWasm makes an image of these layers. Its config has diff IDs for all of them, or only for
// those that are a tar.
func buildWasm(t *testing.T, of v1.Platform, all bool, layers ...wasmLayer) *imagetest.Built {
	b := &imagetest.Built{}
	m := v1.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest}
	cfg := v1.Image{Platform: of, RootFS: v1.RootFS{Type: "layers"}, Config: v1.ImageConfig{Entrypoint: []string{"/hello.wasm"}}}
	for _, l := range layers {
		d := v1.Descriptor{MediaType: l.kind, Digest: digest.FromString(l.data), Size: int64(len(l.data))}
		if l.title != "" {
			d.Annotations = map[string]string{v1.AnnotationTitle: l.title}
		}
		m.Layers = append(m.Layers, d)
		b.Blobs = append(b.Blobs, []byte(l.data))
		if all || l.kind == v1.MediaTypeImageLayer {
			cfg.RootFS.DiffIDs = append(cfg.RootFS.DiffIDs, d.Digest)
		}
	}
	b.Config = imagetest.MustJSON(t, cfg)
	m.Config = v1.Descriptor{MediaType: v1.MediaTypeImageConfig, Digest: digest.FromBytes(b.Config), Size: int64(len(b.Config))}
	b.Manifest = imagetest.MustJSON(t, m)
	b.Desc = v1.Descriptor{MediaType: m.MediaType, Digest: digest.FromBytes(b.Manifest), Size: int64(len(b.Manifest)), Platform: &of}
	return b
}

// An image may have layers that are WebAssembly modules. In its root file system they are
// executable files.
func TestModules(t *testing.T) {
	wasi := v1.Platform{OS: "wasi", Architecture: "wasm"}
	tar := string(imagetest.TarOf(t, map[string]string{"data": "1"}))
	for _, all := range []bool{false, true} {
		reg := imagetest.NewRegistry(t)
		p := imagetest.NewPlace(t, reg)
		img := buildWasm(t, wasi, all,
			wasmLayer{"application/vnd.bytecodealliance.wasm.component.layer.v0+wasm", "hello.wasm", componentBytes},
			wasmLayer{v1.MediaTypeImageLayer, "", tar},
			wasmLayer{"application/wasm", "", moduleBytes},
			wasmLayer{"application/vnd.wasm.content.layer.v1+wasm", "lib/b.wasm", moduleBytes + "\x00"},
			wasmLayer{"application/wasm", "", moduleBytes + "\x00"},
		)
		reg.PushIndex("hello", "v1", img)
		got := p.Pull(reg.Host + "/hello:v1")
		if got.Artifact || got.ID != img.ID() || got.Config.Config.Entrypoint[0] != "/hello.wasm" {
			t.Errorf("the image is %+v", got)
		}
		dir, err := p.Store.RootFS().Mount(t.Context(), "root", got.ID, rootfs.MountOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]string{
			"hello.wasm": componentBytes, "data": "1", "module.wasm": moduleBytes, "lib/b.wasm": moduleBytes + "\x00", "module1.wasm": moduleBytes + "\x00",
		} {
			if got := imagetest.ReadFile(t, dir, name); got != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
			if info, err := os.Stat(filepath.Join(dir, name)); err != nil || name != "data" && info.Mode().Perm() != 0o755 {
				t.Errorf("%s: mode %v, %v", name, info.Mode(), err)
			}
		}

		// An archive of it is an ordinary image with the same files.
		var archive bytes.Buffer
		if err := p.Store.Save(t.Context(), reg.Host+"/hello:v1", func(string) (io.Writer, error) { return &archive, nil }); err != nil {
			t.Fatal(err)
		}
		other := imagetest.NewPlace(t, reg)
		loaded, err := other.Store.Load(t.Context(), &archive)
		if err != nil || len(loaded) != 1 {
			t.Fatalf("loaded %v, %v", loaded, err)
		}
		if dir, err = other.Store.RootFS().Mount(t.Context(), "root", loaded[0].ID, rootfs.MountOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := imagetest.ReadFile(t, dir, "hello.wasm"); got != componentBytes {
			t.Errorf("from the archive hello.wasm is %q", got)
		}
	}
}

// An image for this machine is preferred to one for WebAssembly, and no other is accepted.
func TestModulePlatform(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	module := wasmLayer{"application/wasm", "hello.wasm", moduleBytes}
	wasi := buildWasm(t, v1.Platform{OS: "wasip1", Architecture: "wasm"}, true, module)
	ours := imagetest.Build(t, "gzip", "x")
	reg.PushIndex("both", "v1", wasi, ours)
	if got := p.Pull(reg.Host + "/both:v1"); got.ID != ours.ID() {
		t.Errorf("pulled %s, want %s, the one for this machine", got.ID, ours.ID())
	}
	reg.Push("alone", "v1", wasi)
	if got := p.Pull(reg.Host + "/alone:v1"); got.ID != wasi.ID() {
		t.Errorf("pulled %s, want %s", got.ID, wasi.ID())
	}
	reg.Push("js", "v1", buildWasm(t, v1.Platform{OS: "js", Architecture: "wasm"}, true, module))
	if _, err := p.Store.Pull(t.Context(), reg.Host+"/js:v1", registry.Caller{}); !errors.Is(err, fault.NotFound) {
		t.Errorf("a platform that is not WASI's: %v, want an error of kind %v", err, fault.NotFound)
	}
}

// What cannot become a file is refused, and so are diff IDs that match neither all layers nor the
// tars.
func TestBadModules(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	wasi := v1.Platform{OS: "wasip2", Architecture: "wasm"}
	tar := string(imagetest.TarOf(t, map[string]string{"data": "1"}))
	for tag, img := range map[string]*imagetest.Built{
		"up":       buildWasm(t, wasi, true, wasmLayer{"application/wasm", "../x.wasm", moduleBytes}),
		"absolute": buildWasm(t, wasi, true, wasmLayer{"application/wasm", "/x.wasm", moduleBytes}),
		"nul":      buildWasm(t, wasi, true, wasmLayer{"application/wasm", "a\x00b", moduleBytes}),
		"count":    buildWasm(t, wasi, false, wasmLayer{"application/wasm", "a", moduleBytes}, wasmLayer{v1.MediaTypeImageLayer + "+gzip", "", tar}),
	} {
		reg.Push("bad", tag, img)
		if _, err := p.Store.Pull(t.Context(), reg.Host+"/bad:"+tag, registry.Caller{}); !errors.Is(err, fault.Invalid) {
			t.Errorf("%s: %v, want an error of kind %v", tag, err, fault.Invalid)
		}
	}
}
