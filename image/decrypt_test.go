package image_test

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containers/ocicrypt"
	encconfig "github.com/containers/ocicrypt/config"
	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/test/imagetest"
	"github.com/crisp-cri/crisp/test/oddfiles"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// newKeyPair returns a private and a public key, as PEM.
func newKeyPair(t testing.TB) (private, public string) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	private = string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
	return private, string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

// encrypted returns img with its layers encrypted for the public key.
func encrypted(t testing.TB, img *imagetest.Built, public string) *imagetest.Built {
	t.Helper()
	cc, err := encconfig.EncryptWithJwe([][]byte{[]byte(public)})
	if err != nil {
		t.Fatal(err)
	}
	e := &imagetest.Built{Config: img.Config, Plain: img.Plain}
	var m v1.Manifest
	if err := json.Unmarshal(img.Manifest, &m); err != nil {
		t.Fatal(err)
	}
	for i, l := range m.Layers {
		r, finish, err := ocicrypt.EncryptLayer(cc.EncryptConfig, bytes.NewReader(img.Blobs[i]), l)
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if l.Annotations, err = finish(); err != nil {
			t.Fatal(err)
		}
		l.MediaType += "+encrypted"
		l.Digest, l.Size = digest.FromBytes(data), int64(len(data))
		m.Layers[i] = l
		e.Blobs = append(e.Blobs, data)
	}
	e.Manifest = imagetest.MustJSON(t, m)
	e.Desc = v1.Descriptor{MediaType: m.MediaType, Digest: digest.FromBytes(e.Manifest), Size: int64(len(e.Manifest))}
	return e
}

// An encrypted image requires the node's key, each time: layers that are already in the store do
// not make the key unnecessary.
func TestEncryptedImage(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	private, public := newKeyPair(t)
	other, _ := newKeyPair(t)
	keys := filepath.Join(p.Dir, "keys")
	p.Trusting(image.Settings{KeysDir: keys})
	plain := imagetest.Build(t, "gzip", "base", "secret")
	img := encrypted(t, plain, public)
	top := reg.Push("app", "sealed", img)
	ref := reg.Host + "/app:sealed"

	locked := func(ref string) {
		t.Helper()
		_, err := p.Store.Pull(t.Context(), ref, registry.Caller{})
		if !errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "is encrypted, and no key in") || strings.Contains(err.Error(), "PRIVATE") {
			t.Errorf("pull of %s: error is %v, want one of kind %v that says what is missing", ref, err, fault.Invalid)
		}
	}
	locked(ref) // the directory does not exist yet
	imagetest.WriteFile(t, filepath.Join(keys, "notes.txt"), "not a key")
	imagetest.WriteFile(t, filepath.Join(keys, "other.pem"), other)
	locked(ref)
	oddfiles.Each(t, filepath.Join(keys, "odd.pem"), func(string) { locked(ref) })
	if n := p.Layers(); n != 0 {
		t.Errorf("%d layers on disk", n)
	}

	imagetest.WriteFile(t, filepath.Join(keys, "ours.pem"), private)
	got := p.Pull(ref)
	if got.ID != plain.ID() {
		t.Errorf("image is %s, want the one that was encrypted, %s", got.ID, plain.ID())
	}
	root := p.Mount("c", got.ID)
	if text := imagetest.ReadFile(t, root, "layer0") + imagetest.ReadFile(t, root, "top"); text != "basesecret" {
		t.Errorf("files hold %q", text)
	}

	// A manifest that merely names the layers does not get them.
	claim := imagetest.BuildOf(t, "gzip", v1.Image{}, imagetest.TarOf(t, map[string]string{"x": "junk"}), imagetest.TarOf(t, map[string]string{"y": "junk"}))
	var m v1.Manifest
	if err := json.Unmarshal(claim.Manifest, &m); err != nil {
		t.Fatal(err)
	}
	var cfg v1.Image
	if err := json.Unmarshal(plain.Config, &cfg); err != nil {
		t.Fatal(err)
	}
	cfg.Author = "thief"
	claim.Config = imagetest.MustJSON(t, cfg)
	m.Config.Digest, m.Config.Size = digest.FromBytes(claim.Config), int64(len(claim.Config))
	claim.Manifest = imagetest.MustJSON(t, m)
	reg.Push("app", "claim", claim)
	if _, err := p.Store.Pull(t.Context(), reg.Host+"/app:claim", registry.Caller{}); err == nil {
		t.Error("layers were given out for their diff IDs alone")
	}

	// Without the key another pull fails, by tag or by digest, also if the same image was pulled
	// unencrypted.
	reg.Push("app", "plain", plain)
	p.Pull(reg.Host + "/app:plain")
	p.Pull(reg.Host + "/app@" + top.String())
	if err := os.Remove(filepath.Join(keys, "ours.pem")); err != nil {
		t.Fatal(err)
	}
	locked(ref)
	locked(reg.Host + "/app@" + top.String())
	if err := p.Store.RootFS().Unmount(t.Context(), "c", true); err != nil {
		t.Fatal(err)
	}
}

// A layer that is encrypted for the right key but does not match the config is
// refused.
func TestEncryptedLayerDamaged(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	private, public := newKeyPair(t)
	imagetest.WriteFile(t, filepath.Join(p.Dir, "keys", "key.pem"), private)
	p.Trusting(image.Settings{})
	a, b := imagetest.Build(t, "gzip", "one"), imagetest.Build(t, "gzip", "two")
	sealed := encrypted(t, a, public)
	other := encrypted(t, b, public)
	// One image's layer gets the key of the other's.
	var m, n v1.Manifest
	if err := json.Unmarshal(sealed.Manifest, &m); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(other.Manifest, &n); err != nil {
		t.Fatal(err)
	}
	n.Layers[0].Annotations = m.Layers[0].Annotations
	other.Manifest = imagetest.MustJSON(t, n)
	reg.Push("app", "mixed", other)
	if _, err := p.Store.Pull(t.Context(), reg.Host+"/app:mixed", registry.Caller{}); !errors.Is(err, fault.Invalid) {
		t.Errorf("error is %v, want one of kind %v", err, fault.Invalid)
	}
}
