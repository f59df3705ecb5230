package blob

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/containers/ocicrypt"
	"github.com/containers/ocicrypt/blockcipher"
	encconfig "github.com/containers/ocicrypt/config"
	"github.com/containers/ocicrypt/helpers"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/regular"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// publicOptions is the annotation with the unsealed options of an encrypted layer.
const publicOptions = "org.opencontainers.image.enc.pubopts"

// A Key decrypts one encrypted layer.
type Key struct {
	options blockcipher.LayerBlockCipherOptions
	id      digest.Digest // identity of the layer decrypted with this key: with another key, or none, it is another layer
}

// IsEncrypted reports whether a layer is encrypted (ocicrypt, spec: "+encrypted").
func IsEncrypted(b Blob) bool { return strings.HasSuffix(b.MediaType, "+encrypted") }

// Unlock finds the keys of encrypted layers among those of the node, the files in dir; "" = no
// keys. Layers already in the store need their keys too: that another caller could decrypt them
// does not entitle this one.
func Unlock(layers []Blob, dir string, log *slog.Logger) error {
	var keys *encconfig.DecryptConfig
	for i := range layers {
		b := &layers[i]
		if !IsEncrypted(*b) {
			continue
		}
		if keys == nil {
			var err error
			if keys, err = privateKeys(dir, log); err != nil {
				return err
			}
		}
		var err error
		if b.Key, err = unwrapKey(keys, *b); err != nil {
			return fault.Invalid.Errorf("layer %s is encrypted, and no key in %q opens it: %w", b.Digest, dir, err)
		}
	}
	return nil
}

// privateKeys reads the node's keys: PEM, DER or JWK private keys, X.509 certificates next to
// those for PKCS#7, GPG key rings, PKCS#11 descriptions. It skips other files. The keys are read
// for each pull that needs one, and never kept.
func privateKeys(dir string, log *slog.Logger) (*encconfig.DecryptConfig, error) {
	all := &encconfig.DecryptConfig{Parameters: map[string][][]byte{}}
	if dir == "" {
		return all, nil
	}
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list keys: %w", err)
	}
	for _, f := range files {
		path := filepath.Join(dir, f.Name())
		err := regular.CheckConfig(path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, regular.ErrOther) || strings.Contains(path, ":") { // what follows a colon would be a password
			continue
		}
		var cc encconfig.CryptoConfig
		if err == nil {
			cc, err = helpers.CreateDecryptCryptoConfig([]string{path}, nil)
		}
		if err != nil {
			log.Warn("key cannot be used", "path", path, "err", err)
			continue
		}
		if cc.DecryptConfig == nil {
			continue
		}
		for name, values := range cc.DecryptConfig.Parameters {
			all.Parameters[name] = append(all.Parameters[name], values...)
		}
	}
	return all, nil
}

// unwrapKey decrypts the key of a layer, which is in its annotations, encrypted for one or more
// recipients.
func unwrapKey(keys *encconfig.DecryptConfig, b Blob) (*Key, error) {
	var k Key
	if text := b.Annotations[publicOptions]; text != "" {
		data, err := base64.StdEncoding.DecodeString(text)
		if err == nil {
			err = json.Unmarshal(data, &k.options.Public)
		}
		if err != nil {
			return nil, fmt.Errorf("annotation %s: %w", publicOptions, err)
		}
	}
	private, err := unwrapAny(keys, b)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(private, &k.options.Private); err != nil {
		return nil, errors.New("the key that was found is malformed") // no more: it is a secret
	}
	k.id = digest.FromString(fmt.Sprintf("encrypted\x00%s\x00%s\x00%x", b.Digest, b.Annotations[publicOptions], private))
	return &k, nil
}

func unwrapAny(keys *encconfig.DecryptConfig, b Blob) ([]byte, error) {
	var errs []error
	for scheme, wrapped := range ocicrypt.GetWrappedKeysMap(v1.Descriptor{Annotations: b.Annotations}) {
		wrapper := ocicrypt.GetKeyWrapper(scheme)
		if wrapper.NoPossibleKeys(keys.Parameters) {
			errs = append(errs, fmt.Errorf("%s: there is no key of that kind", scheme))
			continue
		}
		for _, text := range strings.Split(wrapped, ",") {
			sealed, err := base64.StdEncoding.DecodeString(text)
			if err == nil {
				var private []byte
				if private, err = wrapper.UnwrapKey(keys, sealed); err == nil {
					return private, nil
				}
			}
			errs = append(errs, fmt.Errorf("%s: %w", scheme, err))
		}
	}
	if len(errs) == 0 {
		return nil, errors.New("its annotations name no recipient")
	}
	return nil, errors.Join(errs...)
}

// Decrypt decrypts the content of the key's layer. Whether the key was the right one is known
// only at the end of the content.
func (k *Key) Decrypt(r io.Reader) (io.Reader, error) {
	h, err := blockcipher.NewLayerBlockCipherHandler()
	if err != nil {
		return nil, err
	}
	from := &noted{r: r}
	plain, _, err := h.Decrypt(from, k.options)
	if err != nil {
		return nil, fault.Invalid.Errorf("decrypt: %w", err)
	}
	return &derived{io.NopCloser(plain), from, func(error) error {
		// Not the library's text, which contains bytes of the key.
		return fault.Invalid.Errorf("decrypt: it was changed, or has another key")
	}}, nil
}

// CheckKeys returns the private keys in dir that other users can read; "" = no keys.
func CheckKeys(dir string) []string {
	if dir == "" {
		return nil
	}
	var wrong []string
	files, _ := filepath.Glob(filepath.Join(dir, "*")) // only a bad pattern is an error
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil || !info.Mode().IsRegular() || info.Mode()&0o077 == 0 {
			continue
		}
		if data, err := regular.ReadFile(file, regular.MaxConfig); err == nil && bytes.Contains(data, []byte("PRIVATE KEY")) {
			wrong = append(wrong, fmt.Sprintf("others than root may read the private key %s: it has mode %#o", file, info.Mode().Perm()))
		}
	}
	return wrong
}
