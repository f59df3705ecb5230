package image_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/test/imagetest"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

var (
	me       = &registry.Auth{Username: "me", Password: "pass"}
	somebody = &registry.Auth{Username: "somebody", Password: "else"}
)

// Kubernetes promises that imagePullPolicy Always checks the credentials even if the image
// is present, and takes a successful pull without any for proof that none are needed. A
// digest identifies an image, but grants no access to it.
func TestPullOfPresentDigestNeedsCredentials(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	img := imagetest.Build(t, "gzip", "secret")
	ref := reg.Host + "/private@" + reg.Push("private", "v1", img).String()
	reg.Guard("private")
	if _, err := p.Store.Pull(t.Context(), ref, registry.Caller{Auth: me}); err != nil {
		t.Fatal(err)
	}
	reg.Asked("")
	for name, auth := range map[string]*registry.Auth{"none": nil, "empty": {}, "another's": somebody} {
		for _, ref := range []string{ref, strings.Replace(ref, "@", ":v1@", 1)} {
			if got, err := p.Store.Pull(t.Context(), ref, registry.Caller{Auth: auth}); !errors.Is(err, fault.Invalid) {
				t.Errorf("with credentials %s: image %s, error %v, want one of kind %v", name, got.ID, err, fault.Invalid)
			}
		}
	}

	// The registry is not asked again for an authorized caller: if it is down or limits
	// requests, running workloads must not suffer.
	reg.Asked("")
	if _, err := p.Store.Pull(t.Context(), ref, registry.Caller{Auth: me}); err != nil {
		t.Error(err)
	}
	if got := reg.Asked(""); len(got) != 0 {
		t.Errorf("asked for %v", got)
	}
	// Layers are not fetched for another authorized caller, here one with the node's file.
	file := filepath.Join(p.Dir, "auth.json")
	if err := os.WriteFile(file, []byte(`{"auths":{"`+reg.Host+`":{"auth":"bWU6cGFzcw=="}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	p.Pull(ref)
	if got := reg.Asked(""); !slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, "/manifests/") }) || slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, "/blobs/") }) {
		t.Errorf("asked for %v, want the manifest and no blob", got)
	}
	// The file is part of the caller's identity: without it, access is checked again.
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Store.Pull(t.Context(), ref, registry.Caller{}); !errors.Is(err, fault.Invalid) {
		t.Errorf("without the file: error is %v, want one of kind %v", err, fault.Invalid)
	}
	// Authorizations do not survive a restart.
	p.Reopen(image.Options{})
	reg.Asked("")
	if _, err := p.Store.Pull(t.Context(), ref, registry.Caller{Auth: me}); err != nil {
		t.Error(err)
	}
	if got := reg.Asked("/manifests/"); len(got) == 0 {
		t.Error("a new process has not asked the registry")
	}
}

// claim returns an image with arbitrary claims: its config and layers are only named.
func claim(t testing.TB, config []byte, blobs ...[]byte) *imagetest.Built {
	t.Helper()
	b := &imagetest.Built{Config: config}
	m := v1.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest,
		Config: v1.Descriptor{MediaType: v1.MediaTypeImageConfig, Digest: digest.FromBytes(config), Size: int64(len(config))}}
	for _, data := range blobs {
		m.Layers = append(m.Layers, v1.Descriptor{MediaType: v1.MediaTypeImageLayerGzip, Digest: digest.FromBytes(data), Size: int64(len(data))})
	}
	b.Manifest = imagetest.MustJSON(t, m)
	b.Desc = v1.Descriptor{MediaType: m.MediaType, Digest: digest.FromBytes(b.Manifest), Size: int64(len(b.Manifest))}
	return b
}

// The digests of a private image's layers are not secret: they are in its config, and a
// container sees those of its own image. An image that merely names them does not get the
// files.
func TestClaimedLayersAreNotGiven(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	private := imagetest.Build(t, "gzip", "base", "secret")
	reg.Push("private", "latest", private)
	reg.Guard("private")
	if _, err := p.Store.Pull(t.Context(), reg.Host+"/private", registry.Caller{Auth: me}); err != nil {
		t.Fatal(err)
	}
	other, _ := imagetest.Compress(t, "gzip", imagetest.TarOf(t, map[string]string{"x": "y"}))
	config := []byte(strings.Replace(string(private.Config), "amd64", "amd64\",\"author\":\"mallory", 1))
	for name, c := range map[string]struct {
		config []byte
		layers [][]byte
		pushed [][]byte // besides the config
	}{
		"another blob":       {config, [][]byte{private.Blobs[0], other}, [][]byte{private.Blobs[0], other}},
		"a blob not there":   {config, [][]byte{private.Blobs[0], other}, [][]byte{private.Blobs[0]}},
		"the private blob":   {config, private.Blobs, private.Blobs[:1]},
		"the private config": {private.Config, private.Blobs, nil},
	} {
		fake := claim(t, c.config, c.layers...)
		repo := "mallory/" + strings.ReplaceAll(name, " ", "-")
		for _, data := range c.pushed {
			reg.PushBlob(repo, data)
		}
		if name != "the private config" {
			reg.PushBlob(repo, c.config)
		}
		reg.Put("/v2/"+repo+"/manifests/latest", fake.Desc.MediaType, fake.Manifest)
		if got, err := p.Store.Pull(t.Context(), reg.Host+"/"+repo, registry.Caller{Auth: somebody}); err == nil {
			t.Errorf("%s: the files of %v were given as %s", name, private.ID(), got.ID)
		}
	}
	if images := p.Store.List(); len(images) != 1 || len(images[0].Tags) != 1 {
		t.Errorf("images are %+v", images)
	}
}

// A caller chooses the registry, which may be his own and claim to have any blob. Only a registry
// that is known to have it is believed; another one must send it.
func TestOtherRegistryIsNotBelieved(t *testing.T) {
	reg, evil := imagetest.NewRegistry(t), imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg, evil)
	key, public := newKeyPair(t)
	imagetest.WriteFile(t, filepath.Join(p.Dir, "keys", "key.pem"), key)
	p.Trusting(image.Settings{})
	plain := imagetest.Build(t, "gzip", "base", "secret")
	sealed := encrypted(t, imagetest.Build(t, "gzip", "sealed", "secret"), public)
	reg.Push("plain", "latest", plain)
	reg.Push("sealed", "latest", sealed)
	files := reg.PushArtifact("files", "latest", "weights", "secret")
	reg.Guard("")
	owner := registry.Caller{Auth: me}
	for _, repo := range []string{"plain", "sealed", "files"} {
		if _, err := p.Store.Pull(t.Context(), reg.Host+"/"+repo, owner); err != nil {
			t.Fatal(err)
		}
	}
	// He knows the manifests, and changes the configs, to be sure that they do not matter.
	renamed := func(img *imagetest.Built) *imagetest.Built {
		fake := &imagetest.Built{Config: bytes.Replace(img.Config, []byte(`"amd64"`), []byte(`"amd64","author":"mallory"`), 1)}
		fake.Manifest = bytes.Replace(img.Manifest, []byte(digest.FromBytes(img.Config)), []byte(digest.FromBytes(fake.Config)), 1)
		fake.Manifest = bytes.Replace(fake.Manifest, fmt.Appendf(nil, `"size":%d`, len(img.Config)), fmt.Appendf(nil, `"size":%d`, len(fake.Config)), 1)
		fake.Desc = v1.Descriptor{MediaType: v1.MediaTypeImageManifest, Digest: digest.FromBytes(fake.Manifest)}
		return fake
	}
	evil.Push("plain", "latest", renamed(plain))
	evil.Push("sealed", "latest", renamed(sealed))
	artifact := evil.PushArtifact("files", "latest", "weights", "secret")
	if artifact != files {
		t.Fatalf("the artifact is %s, want %s", artifact, files)
	}
	secrets := map[string][][]byte{"plain": plain.Blobs, "sealed": sealed.Blobs, "files": {[]byte("secret")}}
	evil.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		repo, d, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v2/"), "/blobs/")
		if !slices.ContainsFunc(secrets[repo], func(data []byte) bool { return digest.FromBytes(data).String() == d }) {
			return false
		}
		w.Header().Set("Content-Range", "bytes 0-0/1000")
		w.WriteHeader(http.StatusPartialContent)
		w.Write([]byte{0})
		return true
	})
	for repo := range secrets {
		if got, err := p.Store.Pull(t.Context(), evil.Host+"/"+repo, registry.Caller{}); err == nil {
			t.Errorf("%s: the files were given as %s", repo, got.ID)
		}
	}
	if images := p.Store.List(); len(images) != len(secrets) {
		t.Errorf("images are %+v", images)
	}
	// Whoever has the content gets it, and has to show it once.
	evil.Intercept(nil)
	for repo, blobs := range secrets {
		for _, data := range blobs {
			evil.PushBlob(repo, data)
		}
		p.Pull(evil.Host + "/" + repo)
		for _, data := range blobs {
			evil.PushBlob(repo+"/more", data)
		}
	}
	evil.Push("plain/more", "latest", renamed(renamed(plain)))
	evil.Asked("")
	p.Pull(evil.Host + "/plain/more")
	if got := evil.Asked("/blobs/"); len(got) != 3 { // the config, and whether it has the layers
		t.Errorf("fetched %v", got)
	}
}

// The environment in a config can be secret, too, and the config's digest is not: each
// pod's status has it.
func TestClaimedConfigIsNotGiven(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	public := imagetest.TarOf(t, map[string]string{"base": "public"})
	private := imagetest.BuildOf(t, "gzip", v1.Image{Config: v1.ImageConfig{Env: []string{"TOKEN=secret"}}}, public)
	reg.Push("private", "latest", private)
	reg.Guard("private")
	if _, err := p.Store.Pull(t.Context(), reg.Host+"/private", registry.Caller{Auth: me}); err != nil {
		t.Fatal(err)
	}
	fake := claim(t, private.Config, private.Blobs...)
	reg.PushBlob("mallory", private.Blobs[0])
	reg.Put("/v2/mallory/manifests/latest", fake.Desc.MediaType, fake.Manifest)
	if got, err := p.Store.Pull(t.Context(), reg.Host+"/mallory", registry.Caller{Auth: somebody}); err == nil {
		t.Errorf("the config was given: %+v", got)
	}
}

// A layer that several images share is fetched once, whatever repository it came from: it
// is enough that the other repository has the blob.
func TestSharedLayerIsFetchedOnce(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	a, b := imagetest.Build(t, "gzip", "base", "a"), imagetest.Build(t, "gzip", "base", "b")
	reg.Push("a", "latest", a)
	reg.Push("b", "latest", b)
	whole := 0
	reg.Intercept(func(w http.ResponseWriter, req *http.Request) bool {
		if strings.HasSuffix(req.URL.Path, digest.FromBytes(a.Blobs[0]).String()) && req.Header.Get("Range") == "" {
			whole++
		}
		return false
	})
	p.Pull(reg.Host + "/a")
	p.Pull(reg.Host + "/b")
	p.Reopen(image.Options{})
	p.Pull(reg.Host + "/b")
	if whole != 1 {
		t.Errorf("the layer was fetched %d times", whole)
	}
	// With another compression, a layer is recognized by its diff ID.
	z := imagetest.Build(t, "zstd", "base", "a")
	reg.Push("z", "latest", z)
	if got := p.Pull(reg.Host + "/z"); got.ID != a.ID() || p.Layers() != 3 {
		t.Errorf("image %s, %d layers, want %s and 3", got.ID, p.Layers(), a.ID())
	}
}
