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

// encrypted is img with its layers encrypted for a public key.
func encrypted(t testing.TB, img *built, public string) *built {
	t.Helper()
	cc, err := encconfig.EncryptWithJwe([][]byte{[]byte(public)})
	if err != nil {
		t.Fatal(err)
	}
	e := &built{config: img.config, plain: img.plain}
	var m v1.Manifest
	if err := json.Unmarshal(img.manifest, &m); err != nil {
		t.Fatal(err)
	}
	for i, l := range m.Layers {
		r, finish, err := ocicrypt.EncryptLayer(cc.EncryptConfig, bytes.NewReader(img.blobs[i]), l)
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
		e.blobs = append(e.blobs, data)
	}
	e.manifest = mustJSON(t, m)
	e.desc = v1.Descriptor{MediaType: m.MediaType, Digest: digest.FromBytes(e.manifest), Size: int64(len(e.manifest))}
	return e
}

// An encrypted image is for a node that has its key, and only as long as it has
// it: that its layers are in the store does not make them everybody's.
func TestEncryptedImage(t *testing.T) {
	reg := newRegistry(t)
	p := newPlace(t, reg)
	private, public := newKeyPair(t)
	other, _ := newKeyPair(t)
	keys := filepath.Join(p.dir, "keys")
	p.trusting(image.Settings{KeysDir: keys})
	plain := build(t, "gzip", "base", "secret")
	img := encrypted(t, plain, public)
	top := reg.push("app", "sealed", img)
	ref := reg.host + "/app:sealed"

	locked := func(ref string) {
		t.Helper()
		_, err := p.store.Pull(t.Context(), ref, registry.Caller{})
		if !errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "is encrypted, and no key in") || strings.Contains(err.Error(), "PRIVATE") {
			t.Errorf("pull of %s: error is %v, want one of kind %v that says what is missing", ref, err, fault.Invalid)
		}
	}
	locked(ref) // no directory
	write(t, filepath.Join(keys, "notes.txt"), "not a key")
	write(t, filepath.Join(keys, "other.pem"), other)
	locked(ref)
	if n := p.layers(); n != 0 {
		t.Errorf("%d layers on disk", n)
	}

	write(t, filepath.Join(keys, "ours.pem"), private)
	got := p.pull(ref)
	if got.ID != plain.id() {
		t.Errorf("image is %s, want the one that was encrypted, %s", got.ID, plain.id())
	}
	root := p.mount("c", got.ID)
	if text := read(t, root, "layer0") + read(t, root, "top"); text != "basesecret" {
		t.Errorf("files hold %q", text)
	}

	// A manifest that merely claims the layers does not get them.
	claim := buildOf(t, "gzip", v1.Image{}, tarOf(t, map[string]string{"x": "junk"}), tarOf(t, map[string]string{"y": "junk"}))
	var m v1.Manifest
	if err := json.Unmarshal(claim.manifest, &m); err != nil {
		t.Fatal(err)
	}
	var cfg v1.Image
	if err := json.Unmarshal(plain.config, &cfg); err != nil {
		t.Fatal(err)
	}
	cfg.Author = "thief"
	claim.config = mustJSON(t, cfg)
	m.Config.Digest, m.Config.Size = digest.FromBytes(claim.config), int64(len(claim.config))
	claim.manifest = mustJSON(t, m)
	reg.push("app", "claim", claim)
	if _, err := p.store.Pull(t.Context(), reg.host+"/app:claim", registry.Caller{}); err == nil {
		t.Error("layers were had for their diff IDs alone")
	}

	// Without the key it is not pulled again, by tag or by digest.
	if err := os.Remove(filepath.Join(keys, "ours.pem")); err != nil {
		t.Fatal(err)
	}
	locked(ref)
	locked(reg.host + "/app@" + top.String())
	if err := p.store.RootFS().Unmount(t.Context(), "c", true); err != nil {
		t.Fatal(err)
	}
}

// What is encrypted for the right key and is not what the config says is no image.
func TestEncryptedLayerDamaged(t *testing.T) {
	reg := newRegistry(t)
	p := newPlace(t, reg)
	private, public := newKeyPair(t)
	write(t, filepath.Join(p.dir, "keys", "key.pem"), private)
	p.trusting(image.Settings{})
	a, b := build(t, "gzip", "one"), build(t, "gzip", "two")
	sealed := encrypted(t, a, public)
	other := encrypted(t, b, public)
	// The key of one layer on the other.
	var m, n v1.Manifest
	if err := json.Unmarshal(sealed.manifest, &m); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(other.manifest, &n); err != nil {
		t.Fatal(err)
	}
	n.Layers[0].Annotations = m.Layers[0].Annotations
	other.manifest = mustJSON(t, n)
	reg.push("app", "mixed", other)
	if _, err := p.store.Pull(t.Context(), reg.host+"/app:mixed", registry.Caller{}); !errors.Is(err, fault.Invalid) {
		t.Errorf("error is %v, want one of kind %v", err, fault.Invalid)
	}
}
