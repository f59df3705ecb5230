package test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/containers/ocicrypt"
	encconfig "github.com/containers/ocicrypt/config"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	oci "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/rogpeppe/go-internal/testscript"
)

// trustCmd is:
//
//	registry sign NAME CLAIM KEY           a signature of $REGISTRY/NAME like cosign's, for the name CLAIM
//	registry policy FILE SCOPE KEY         a policy.json that requires such signatures below SCOPE, and accepts the rest
//	registry push-encrypted NAME KEY       testbin's image, its layers encrypted
//	registry push-artifact NAME FILE...    an OCI artifact of these files
//
// KEY is a file of the script: a private key in PEM, which is made, with KEY.pub beside it, if it
// does not exist.
func (n *node) trustCmd(ts *testscript.TestScript, args []string) error {
	switch verb, args := args[0], args[1:]; {
	case verb == "sign" && len(args) == 3:
		key, err := signingKey(ts.MkAbs(args[2]))
		if err != nil {
			return err
		}
		return n.sign(args[0], args[1], key)
	case verb == "policy" && len(args) == 3:
		key := ts.MkAbs(args[2])
		if _, err := signingKey(key); err != nil {
			return err
		}
		return writePolicy(ts.MkAbs(args[0]), args[1], key+".pub")
	case verb == "push-encrypted" && len(args) == 2:
		public, err := sealingKey(ts.MkAbs(args[1]))
		if err != nil {
			return err
		}
		image, err := testbinImage(n.testbin)
		if err != nil {
			return err
		}
		if image, err = encrypt(image, public); err != nil {
			return err
		}
		return n.push(args[0], image)
	case verb == "push-artifact" && len(args) > 1:
		image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), "application/vnd.example.config.v1+json")
		for _, file := range args[1:] {
			l := static.NewLayer([]byte(ts.ReadFile(file)), "application/octet-stream")
			var err error
			if image, err = mutate.Append(image, mutate.Addendum{Layer: l, Annotations: map[string]string{oci.AnnotationTitle: file}}); err != nil {
				return err
			}
		}
		return n.push(args[0], image)
	}
	return errUsage
}

// signingKey returns the ECDSA key at path, or makes it and its public half.
func signingKey(path string) (*ecdsa.PrivateKey, error) {
	if data, err := os.ReadFile(path); err == nil {
		block, _ := pem.Decode(data)
		return x509.ParseECPrivateKey(block.Bytes)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, writeKeys(path, "EC PRIVATE KEY", der, &key.PublicKey)
}

// sealingKey makes the RSA key at path if it does not exist, and returns its public half in
// PEM.
func sealingKey(path string) ([]byte, error) {
	if _, err := os.Stat(path); err != nil {
		key, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			return nil, err
		}
		if err := writeKeys(path, "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(key), &key.PublicKey); err != nil {
			return nil, err
		}
	}
	return os.ReadFile(path + ".pub")
}

func writeKeys(path, kind string, private []byte, public any) error {
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: private}), 0o600); err != nil {
		return err
	}
	return os.WriteFile(path+".pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o644)
}

// sign pushes a signature of an image beside it (cosign, SIGNATURE_SPEC.md).
func (n *node) sign(ref, claim string, key *ecdsa.PrivateKey) error {
	tag, err := name.NewTag(n.registry.host()+"/"+ref, name.Insecure)
	if err != nil {
		return err
	}
	desc, err := remote.Head(tag)
	if err != nil {
		return err
	}
	payload := fmt.Appendf(nil, `{"critical":{"identity":{"docker-reference":%q},"image":{"docker-manifest-digest":%q},"type":"cosign container image signature"},"optional":null}`, claim, desc.Digest)
	sum := sha256.Sum256(payload)
	sig, err := ecdsa.SignASN1(rand.Reader, key, sum[:])
	if err != nil {
		return err
	}
	image, err := mutate.Append(mutate.MediaType(empty.Image, types.OCIManifestSchema1), mutate.Addendum{
		Layer:       static.NewLayer(payload, "application/vnd.dev.cosign.simplesigning.v1+json"),
		Annotations: map[string]string{"dev.cosignproject.cosign/signature": base64.StdEncoding.EncodeToString(sig)},
	})
	if err != nil {
		return err
	}
	image = mutate.ConfigMediaType(image, types.OCIConfigJSON)
	return n.push(tag.RepositoryStr()+":"+strings.Replace(desc.Digest.String(), ":", "-", 1)+".sig", image)
}

func writePolicy(path, scope, key string) error {
	policy, err := json.Marshal(map[string]any{
		"default": []any{map[string]string{"type": "insecureAcceptAnything"}},
		"transports": map[string]any{"docker": map[string]any{
			scope: []any{map[string]any{"type": "sigstoreSigned", "keyPath": key}},
		}},
	})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, policy, 0o644)
}

// encrypt returns the image with its layers encrypted for the public key.
func encrypt(image v1.Image, public []byte) (v1.Image, error) {
	cc, err := encconfig.EncryptWithJwe([][]byte{public})
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	layers, err := image.Layers()
	if err != nil {
		return nil, err
	}
	sealed := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	for _, l := range layers {
		plain, err := l.Compressed()
		if err != nil {
			return nil, err
		}
		r, finish, err := ocicrypt.EncryptLayer(cc.EncryptConfig, plain, oci.Descriptor{})
		if err != nil {
			return nil, err
		}
		data, err := io.ReadAll(r)
		if err != nil {
			return nil, err
		}
		notes, err := finish()
		if err != nil {
			return nil, err
		}
		if sealed, err = mutate.Append(sealed, mutate.Addendum{Layer: static.NewLayer(data, oci.MediaTypeImageLayerGzip+"+encrypted"), Annotations: notes}); err != nil {
			return nil, err
		}
	}
	// The config is that of the plain image: it has the digests of the decrypted layers.
	sealed, err = mutate.ConfigFile(sealed, config)
	return mutate.ConfigMediaType(sealed, types.OCIConfigJSON), err
}
