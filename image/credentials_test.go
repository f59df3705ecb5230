package image_test

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/test/imagetest"
)

// A namespace's credentials replace the node's, and those of the request replace both.
func TestNamespaceCredentials(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	file := func(user string) string {
		auth := base64.StdEncoding.EncodeToString([]byte(user + ":secret"))
		return fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, reg.Host, auth)
	}
	imagetest.WriteFile(t, filepath.Join(p.Dir, "auth.json"), file("node"))
	imagetest.WriteFile(t, filepath.Join(p.Dir, "auth", "team.json"), file("team"))
	p.Trusting(image.Settings{})
	reg.Push("app", "v1", imagetest.Build(t, "gzip", "x"))
	var user string
	reg.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		name, _, ok := r.BasicAuth()
		if user = name; !ok {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
		}
		return !ok
	})
	request := &registry.Auth{Username: "request", Password: "secret"}
	for _, c := range []struct {
		as   registry.Caller
		want string
	}{
		{registry.Caller{}, "node"},
		{registry.Caller{Namespace: "other"}, "node"},
		{registry.Caller{Namespace: "team"}, "team"},
		{registry.Caller{Namespace: "team", Auth: request}, "request"},
	} {
		if _, err := p.Store.Pull(t.Context(), reg.Host+"/app:v1", c.as); err != nil || user != c.want {
			t.Errorf("%s was asked with the credentials of %q, want %q (err %v)", c.as.Namespace, user, c.want, err)
		}
	}
	// A file of CRI-O's credential provider is used for one pull.
	once := filepath.Join(p.Dir, "auth", fmt.Sprintf("team-%x.json", sha256.Sum256([]byte(reg.Host+"/app"))))
	imagetest.WriteFile(t, once, file("once"))
	for _, want := range []string{"once", "team"} {
		if _, err := p.Store.Pull(t.Context(), reg.Host+"/app:v1", registry.Caller{Namespace: "team"}); err != nil || user != want {
			t.Errorf("asked with the credentials of %q, want %q (err %v)", user, want, err)
		}
	}
	if _, err := os.Stat(once); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is still there (err %v)", err)
	}
	if left := p.Names("staging"); len(left) != 0 {
		t.Errorf("staging has %v", left)
	}
}

// Credentials that cannot be read are reported by file, and without secrets.
func TestBrokenCredentials(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	p.Trusting(image.Settings{})
	reg.Push("app", "v1", imagetest.Build(t, "gzip", "x"))
	for path, namespace := range map[string]string{
		filepath.Join(p.Dir, "auth.json"):         "",
		filepath.Join(p.Dir, "auth", "team.json"): "team",
	} {
		for _, text := range []string{"{", "[]", fmt.Sprintf(`{"auths":{%q:{"auth":"s3cret!"}}}`, reg.Host)} {
			imagetest.WriteFile(t, path, text)
			_, err := p.Store.Pull(t.Context(), reg.Host+"/app:v1", registry.Caller{Namespace: namespace})
			failedWith(t, err, fault.Invalid, "")
			if err == nil || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "s3cret") {
				t.Errorf("%s: %v", text, err)
			}
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	p.Pull(reg.Host + "/app:v1")
}
