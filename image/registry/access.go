package registry

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"go.podman.io/image/v5/docker/reference"
	"go.podman.io/image/v5/pkg/docker/config"

	"github.com/crisp-cri/crisp/internal/regular"
)

// maxAccesses bounds the number of pulls by digest remembered. A forgotten caller must
// authenticate again.
const maxAccesses = 10_000

// accesses are the pulls by digest that a registry has allowed since this process began, as hashes
// of reference, credentials and policy.
type accesses struct {
	mu sync.Mutex
	m  map[[sha256.Size]byte]struct{} // guarded by mu
}

// Remember records that a registry has allowed the pull with this access key; nil records
// nothing.
func (a *accesses) Remember(access []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if access == nil {
		return
	}
	if a.m == nil || len(a.m) >= maxAccesses {
		a.m = make(map[[sha256.Size]byte]struct{})
	}
	a.m[sha256.Sum256(access)] = struct{}{}
}

// Remembers reports whether a registry has allowed the pull with this access key.
func (a *accesses) Remembers(access []byte) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ok := a.m[sha256.Sum256(access)]
	return access != nil && ok
}

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
		if file, err = regular.ReadFile(sys.AuthFilePath, regular.MaxConfig); err != nil && !errors.Is(err, fs.ErrNotExist) {
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

// takeCredentials takes the credentials that CRI-O's credential provider, a plugin of the
// kubelet, has left for this pull: <namespace>-<SHA-256 of the image's name>.json, next to the
// files of namespaces, over which it has precedence. The file is removed with the pull; the
// provider writes a new one for each.
func (c *Client) takeCredentials(r *Source, name reference.Named, namespace string) error {
	path, err := c.providedCredentials(name, namespace)
	if err != nil || path == "" {
		return err
	}
	data, err := regular.ReadFile(path, regular.MaxConfig)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = os.Remove(path)
	}
	if err != nil {
		return fmt.Errorf("take credentials of namespace %s: %w", namespace, err)
	}
	own, err := r.makeFiles(c.staging)
	if err != nil {
		return err
	}
	r.sys.AuthFilePath = filepath.Join(own, "auth.json")
	return os.WriteFile(r.sys.AuthFilePath, data, 0o600)
}

// providedCredentials returns the path of that file; "" = there can be none.
func (c *Client) providedCredentials(name reference.Named, namespace string) (string, error) {
	dir := c.now().AuthDir
	if dir == "" || namespace == "" {
		return "", nil
	}
	if err := isFileName(namespace); err != nil {
		return "", err
	}
	return filepath.Join(dir, fmt.Sprintf("%s-%x.json", namespace, sha256.Sum256([]byte(name.Name())))), nil
}

// makeFiles returns r's own directory for files that the library must read.
func (r *Source) makeFiles(staging string) (dir string, err error) {
	if r.files == "" {
		r.files, err = os.MkdirTemp(staging, "pull-*")
	}
	return r.files, err
}
