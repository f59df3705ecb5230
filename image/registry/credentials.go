package registry

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"go.podman.io/image/v5/docker/reference"
)

// takeCredentials takes the credentials that CRI-O's credential provider, a plugin of the
// kubelet, has left for this pull: <namespace>-<SHA-256 of the image's name>.json, next to the
// files of namespaces, over which it has precedence. The file is removed with the pull; the
// provider writes a new one for each.
func (c *Client) takeCredentials(r *Source, name reference.Named, namespace string) error {
	path, err := c.providedCredentials(name, namespace)
	if err != nil || path == "" {
		return err
	}
	data, err := os.ReadFile(path)
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

// forgetFiles removes the directory of makeFiles.
func (r *Source) forgetFiles() {
	if r.files != "" {
		os.RemoveAll(r.files) // Open removes leftovers
		r.files = ""
	}
}
