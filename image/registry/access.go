package registry

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"go.podman.io/image/v5/docker/reference"
	"go.podman.io/image/v5/pkg/docker/config"
)

// maxAccesses bounds the number of pulls by digest remembered. A forgotten caller must
// authenticate again.
const maxAccesses = 10_000

// accesses are the pulls by digest that a registry has allowed since this process
// began: by reference, credentials and policy, of which only a hash is kept.
type accesses struct {
	mu sync.Mutex
	m  map[[sha256.Size]byte]struct{} // guarded by mu
}

func (a *accesses) has(key []byte) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ok := a.m[sha256.Sum256(key)]
	return key != nil && ok
}

func (a *accesses) add(key []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if key == nil {
		return
	}
	if a.m == nil || len(a.m) >= maxAccesses {
		a.m = make(map[[sha256.Size]byte]struct{})
	}
	a.m[sha256.Sum256(key)] = struct{}{}
}

// Remember records that a registry has allowed the pull with this access key; nil records
// nothing.
func (c *Client) Remember(access []byte) { c.accesses.add(access) }

// Remembers reports whether a registry has allowed the pull with this access key.
func (c *Client) Remembers(access []byte) bool { return c.accesses.has(access) }

// AccessKey returns name and everything that decides whether it may be pulled for a caller: the
// credentials in the request, those in files that apply to him, and the answer of a credential
// helper. nil: that is unknown, or valid for one pull only.
func (c *Client) AccessKey(name reference.Named, as Caller) ([]byte, error) {
	sys, err := c.system(name, as)
	if err != nil {
		return nil, err
	}
	if path, err := c.providedCredentials(name, as.Namespace); err != nil {
		return nil, err
	} else if path != "" {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
	}
	request, err := json.Marshal(as.Auth)
	if err != nil {
		return nil, err
	}
	var file []byte
	if sys.AuthFilePath != "" {
		if file, err = os.ReadFile(sys.AuthFilePath); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, nil // the pull reports the problem
		}
	}
	found, err := config.GetCredentialsForRef(sys, name)
	if err != nil {
		return nil, nil
	}
	return bytes.Join([][]byte{
		fmt.Appendf(nil, "%q %q %q %q", name, sys.SignaturePolicyPath, sys.AuthFilePath, found), request, file,
	}, []byte{0}), nil
}

// PullKey returns the key of a pull: the image and the rights of the caller.
func (c *Client) PullKey(names []reference.Named, as Caller) (string, error) {
	secret, err := json.Marshal(as.Auth)
	if err != nil {
		return "", err
	}
	sys, err := c.system(nil, Caller{Namespace: as.Namespace})
	if err != nil {
		return "", err
	}
	namespace := ""
	// Credentials may be left for this pull at any time: then it is its namespace's alone.
	if _, err := os.Stat(c.now().AuthDir); err == nil {
		namespace = as.Namespace
	}
	return fmt.Sprintf("%s %q %q %q %x", names, namespace, sys.SignaturePolicyPath, sys.AuthFilePath, sha256.Sum256(secret)), nil
}
