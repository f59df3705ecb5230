package imagetest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// A Signer makes signatures as cosign does, with its own key.
type Signer struct {
	Key  *ecdsa.PrivateKey
	Path string // of the public key
}

// NewSigner makes a key.
func NewSigner(t testing.TB) *Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	s := &Signer{key, filepath.Join(t.TempDir(), "cosign.pub")}
	WriteFile(t, s.Path, string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})))
	return s
}

// Sign pushes a signature of a manifest for the name claim, beside the manifest.
func (r *Registry) Sign(s *Signer, repo string, manifest digest.Digest, claim string) {
	r.t.Helper()
	r.SignWith(s.Key, repo, manifest, claim, nil)
}

// SignWith is Sign with a key; more, if not nil, returns annotations for a
// signature.
func (r *Registry) SignWith(key *ecdsa.PrivateKey, repo string, manifest digest.Digest, claim string, more func(payload, sig []byte) map[string]string) {
	r.t.Helper()
	payload := fmt.Appendf(nil, `{"critical":{"identity":{"docker-reference":%q},"image":{"docker-manifest-digest":%q},"type":"cosign container image signature"},"optional":null}`, claim, manifest)
	sum := sha256.Sum256(payload)
	sig, err := ecdsa.SignASN1(rand.Reader, key, sum[:])
	if err != nil {
		r.t.Fatal(err)
	}
	notes := map[string]string{}
	if more != nil {
		notes = more(payload, sig)
	}
	notes["dev.cosignproject.cosign/signature"] = base64.StdEncoding.EncodeToString(sig)
	config := []byte(`{"architecture":"","os":"","rootfs":{"type":"layers","diff_ids":[]}}`)
	r.PushBlob(repo, config)
	r.PushBlob(repo, payload)
	m := v1.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest,
		Config: v1.Descriptor{MediaType: v1.MediaTypeImageConfig, Digest: digest.FromBytes(config), Size: int64(len(config))},
		Layers: []v1.Descriptor{{
			MediaType: "application/vnd.dev.cosign.simplesigning.v1+json", Digest: digest.FromBytes(payload), Size: int64(len(payload)),
			Annotations: notes,
		}}}
	r.Put("/v2/"+repo+"/manifests/"+strings.Replace(manifest.String(), ":", "-", 1)+".sig", m.MediaType, MustJSON(r.t, m))
}

// WriteFile writes a file, and makes its parent directories.
func WriteFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
