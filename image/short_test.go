package image_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/test/imagetest"
)

// A name without a registry may mean several images. short-name-mode decides what happens
// where registries.conf has several registries, and the kubelet has chosen credentials as
// if the name were one of docker.io's.
func TestShortNameMode(t *testing.T) {
	first, second := imagetest.NewRegistry(t), imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t)
	conf := func(mode string, search ...string) {
		p.Configure(fmt.Sprintf("%s\nunqualified-search-registries = [\"%s\"]\n", mode, strings.Join(search, `", "`)) +
			fmt.Sprintf("[[registry]]\nlocation = %q\ninsecure = true\n[[registry]]\nlocation = %q\ninsecure = true\n[aliases]\n\"alias\" = \"%s/app\"\n", first.Host, second.Host, second.Host))
	}
	img := imagetest.Build(t, "gzip", "a")
	second.Push("app", "v1", img)
	second.Push("library/app", "v1", imagetest.Build(t, "gzip", "b"))
	shown := []func() string{first.Overhear("Basic"), second.Overhear("Basic")}

	conf(`short-name-mode = "enforcing"`, first.Host, second.Host)
	if got, err := p.Store.Pull(t.Context(), "app:v1", registry.Caller{}); !errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "app") {
		t.Errorf("enforcing: %s, error %v, want one of kind %v", got.ID, err, fault.Invalid)
	}
	p.Pull("alias:v1") // an alias names one image
	id := p.Store.List()[0].ID
	if got, err := p.Store.Get(strings.TrimPrefix(id, "sha256:")[:12]); err != nil || got.ID != id {
		t.Errorf("a short ID is not found: %v", err)
	}
	if _, err := p.Store.Get("app:v1"); !errors.Is(err, fault.Invalid) {
		t.Errorf("enforcing: error is %v, want one of kind %v", err, fault.Invalid)
	}
	conf(`short-name-mode = "enforcing"`, second.Host)
	p.Pull("app:v1")
	conf(`short-name-mode = "permissive"`, first.Host, second.Host)
	p.Pull("app:v1")

	// library/app is another repository than app.
	if got := p.Pull("library/app:v1"); got.ID == img.ID() {
		t.Errorf("library/app is %v", got.Tags)
	}
	secret := base64.StdEncoding.EncodeToString([]byte("me:pass"))
	for _, f := range shown {
		f()
	}
	if _, err := p.Store.Pull(t.Context(), "app:v1", registry.Caller{Auth: me}); err != nil {
		t.Error(err)
	}
	for i, f := range shown {
		if got := f(); strings.Contains(got, secret) {
			t.Errorf("search registry %d got %q", i, got)
		}
	}
	// Credentials with an address are sent there only.
	if _, err := p.Store.Pull(t.Context(), "app:v1", registry.Caller{Auth: &registry.Auth{Username: "me", Password: "pass", ServerAddress: second.Host}}); err != nil {
		t.Error(err)
	}
	if got := shown[0](); strings.Contains(got, secret) {
		t.Errorf("the first registry got %q", got)
	}
	if got := shown[1](); !strings.Contains(got, secret) {
		t.Errorf("the second registry got %q", got)
	}
	imagetest.WriteFile(t, filepath.Join(p.Dir, "registries.conf"), "short-name-mode = \"odd\"\n")
	if _, err := p.Store.Pull(t.Context(), "app:v1", registry.Caller{}); !errors.Is(err, fault.Invalid) {
		t.Errorf("error is %v, want one of kind %v", err, fault.Invalid)
	}
}

// That one registry lacks a short name proves nothing while another does not answer. The error
// mentions both, and which of them may be retried.
func TestShortNameNowhere(t *testing.T) {
	first, second := imagetest.NewRegistry(t), imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t)
	p.Configure(fmt.Sprintf("unqualified-search-registries = [%q, %q]\n[[registry]]\nlocation = %[1]q\ninsecure = true\n[[registry]]\nlocation = %[2]q\ninsecure = true\n", first.Host, second.Host))
	_, err := p.Store.Pull(t.Context(), "app:v1", registry.Caller{})
	failedWith(t, err, fault.NotFound, "")
	second.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		http.Error(w, "", http.StatusBadGateway)
		return true
	})
	_, err = p.Store.Pull(t.Context(), "app:v1", registry.Caller{})
	failedWith(t, err, nil, registry.RegistryUnavailable)
	if err == nil || !strings.Contains(err.Error(), first.Host+"/app:v1") || !strings.Contains(err.Error(), second.Host+"/app:v1") {
		t.Errorf("error %v does not name both", err)
	}
	second.Intercept(nil)
	second.Push("app", "v1", imagetest.Build(t, "gzip", "a"))
	p.Pull("app:v1")
}
