package image_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/test/imagetest"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// The files are the same with each compression, and a layer that two images share is
// unpacked once.
func TestPull(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	for _, compression := range []string{"gzip", "zstd", "plain"} {
		img := imagetest.Build(t, compression, "one", "two", "from "+compression)
		top := reg.Push("app", compression, img)
		got := p.Pull(reg.Host + "/app:" + compression)
		if got.ID != img.ID() || got.Size == 0 || got.CreatedAt.IsZero() {
			t.Errorf("%s: image is %+v", compression, got)
		}
		if want := []string{reg.Host + "/app:" + compression}; !slices.Equal(got.Tags, want) {
			t.Errorf("%s: tags are %v", compression, got.Tags)
		}
		if want := []string{reg.Host + "/app@" + top.String()}; !slices.Equal(got.Digests, want) {
			t.Errorf("%s: digests are %v", compression, got.Digests)
		}
		root := p.Mount(compression, got.ID)
		if got := imagetest.ReadFile(t, root, "layer0") + imagetest.ReadFile(t, root, "layer1") + imagetest.ReadFile(t, root, "top"); got != "onetwofrom "+compression {
			t.Errorf("%s: files hold %q", compression, got)
		}
	}
	if n := p.Layers(); n != 5 {
		t.Errorf("%d layers on disk, want 5", n)
	}
}

// The registry is asked for a tag each time, because the tag may have moved; layers that
// another image has are not fetched again.
func TestPullAgain(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	old := imagetest.Build(t, "gzip", "base", "old")
	oldTop := reg.Push("app", "v1", old)
	ref := reg.Host + "/app:v1"
	first := p.Pull(ref)
	reg.Asked("")

	if again := p.Pull(ref); again.ID != first.ID || !again.CreatedAt.Equal(first.CreatedAt) {
		t.Errorf("second pull gave %+v, want %+v", again, first)
	}
	if len(reg.Asked("/manifests/v1")) == 0 {
		t.Error("the registry was not asked")
	}

	next := imagetest.Build(t, "gzip", "base", "new")
	reg.Push("app", "v1", next)
	moved := p.Pull(ref)
	if got := reg.Asked("/blobs/"); len(got) != 2 { // the config and one layer
		t.Errorf("fetched %v", got)
	}
	if moved.ID != next.ID() || !slices.Equal(moved.Tags, []string{ref}) {
		t.Errorf("image is %+v", moved)
	}
	left, err := p.Store.Get(first.ID)
	if err != nil || len(left.Tags) != 0 || len(left.Digests) != 1 {
		t.Errorf("the old image is %+v (err %v), want one without tag", left, err)
	}

	// A digest identifies the image: if that is present, only its manifest is requested,
	// because access may be restricted, and only once.
	for _, want := range []int{1, 0} {
		reg.Asked("")
		if img := p.Pull(reg.Host + "/app@" + oldTop.String()); img.ID != first.ID {
			t.Errorf("got image %s", img.ID)
		}
		if got := reg.Asked("/v2/app/"); len(got) != want {
			t.Errorf("asked for %v", got)
		}
	}
}

// imagePullPolicy Always pulls at each start of a container, usually an image that is
// present: the pulls of a whole node must not queue for the disk because of that.
func TestPullOfSameImageWritesNothing(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	reg.Push("app", "v1", imagetest.Build(t, "gzip", "x"))
	ref := reg.Host + "/app:v1"
	img := p.Pull(ref)
	stat := func() os.FileInfo {
		t.Helper()
		info, err := os.Stat(filepath.Join(p.Dir, "records", "imagerecords", strings.TrimPrefix(img.ID, "sha256:"), "record.json"))
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	before := stat()
	if again := p.Pull(ref); again.ID != img.ID || !slices.Equal(again.Tags, img.Tags) {
		t.Errorf("second pull gave %+v, want %+v", again, img)
	}
	if !os.SameFile(before, stat()) {
		t.Error("the record was written again")
	}
	reg.Push("app", "v2", imagetest.Build(t, "gzip", "x"))
	if again := p.Pull(reg.Host + "/app:v2"); len(again.Tags) != 2 || os.SameFile(before, stat()) {
		t.Errorf("another tag was not written: %v", again.Tags)
	}
}

// critest: a pull by digest adds no repo tag, and exactly one repo digest.
func TestPullByDigest(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	img := imagetest.Build(t, "gzip", "x")
	top := reg.Push("app", "v1", img)
	for _, ref := range []string{"/app@" + top.String(), "/app:v1@" + top.String(), "/app:other@" + top.String()} {
		got := p.Pull(reg.Host + ref)
		if len(got.Tags) != 0 || !slices.Equal(got.Digests, []string{reg.Host + "/app@" + top.String()}) {
			t.Errorf("pull of %s: tags %v digests %v", ref, got.Tags, got.Digests)
		}
	}
	// The right manifest under a wrong digest is refused.
	reg.Put("/v2/app/manifests/v2", v1.MediaTypeImageManifest, img.Manifest)
	wrong := digest.FromString("something else")
	reg.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		r.URL.Path = strings.Replace(r.URL.Path, wrong.String(), "v2", 1)
		return false
	})
	if got, err := p.Store.Pull(t.Context(), reg.Host+"/app@"+wrong.String(), registry.Caller{}); err == nil {
		t.Errorf("got %+v under a wrong digest", got)
	}
}

// The image for this platform is pulled from an index, and the digest of the index is kept: that is
// what the user's reference resolved to.
func TestPullList(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	ours := imagetest.Build(t, "gzip", "ours")
	other := imagetest.BuildOf(t, "gzip", v1.Image{Platform: v1.Platform{OS: "linux", Architecture: "s390x"}}, imagetest.TarOf(t, map[string]string{"x": "y"}))
	top := reg.PushIndex("multi", "latest", other, ours)
	got := p.Pull(reg.Host + "/multi")
	if got.ID != ours.ID() || !slices.Equal(got.Digests, []string{reg.Host + "/multi@" + top.String()}) {
		t.Errorf("image is %+v", got)
	}
	reg.PushIndex("foreign", "latest", other)
	if _, err := p.Store.Pull(t.Context(), reg.Host+"/foreign", registry.Caller{}); !errors.Is(err, fault.NotFound) {
		t.Errorf("error is %v, want one of kind %v", err, fault.NotFound)
	}
}

// A mirror is tried first, under the image's own name. If it lacks the image, the registry is
// tried.
func TestPullFromMirror(t *testing.T) {
	mirror, origin := imagetest.NewRegistry(t), imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t)
	p.Configure(fmt.Sprintf(`
		[[registry]]
		location = "registry.example"
		[[registry.mirror]]
		location = %q
		insecure = true
		[[registry]]
		prefix = "second.example"
		location = %q
		insecure = true
		[[registry.mirror]]
		location = %q
		insecure = true
		[[registry]]
		location = "blocked.example"
		blocked = true`, mirror.Host, origin.Host, mirror.Host))
	a, b := imagetest.Build(t, "gzip", "a"), imagetest.Build(t, "gzip", "b")
	mirror.Push("team/app", "v1", a)
	origin.Push("only/here", "v1", b)
	if got := p.Pull("registry.example/team/app:v1"); got.ID != a.ID() || got.Tags[0] != "registry.example/team/app:v1" {
		t.Errorf("image is %+v", got)
	}
	if got := p.Pull("second.example/only/here:v1"); got.ID != b.ID() {
		t.Errorf("image is %+v", got)
	}
	if len(mirror.Asked("/only/here/")) == 0 {
		t.Error("the mirror was not asked first")
	}
	if _, err := p.Store.Pull(t.Context(), "blocked.example/x", registry.Caller{}); !errors.Is(err, fault.Invalid) {
		t.Errorf("error is %v, want one of kind %v", err, fault.Invalid)
	}
}

// Credentials come from the request, in any of its forms, or else from the node; those for
// another registry are not sent.
func TestPullWithCredentials(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	img := imagetest.Build(t, "gzip", "secret")
	reg.Push("private", "latest", img)
	var tokens atomic.Bool
	reg.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		header := r.Header.Get("Authorization")
		user, password, _ := r.BasicAuth()
		if user == "me" && password == "pass" || header == "Bearer token" {
			return false
		}
		scheme := "Basic"
		if tokens.Load() {
			scheme = "Bearer"
		}
		w.Header().Set("WWW-Authenticate", scheme+` realm="http://`+reg.Host+`/nobody"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	base64d := base64.StdEncoding.EncodeToString([]byte("me:pass"))
	for _, c := range []struct {
		name string
		auth *registry.Auth
		ok   bool
	}{
		{"none", nil, false},
		{"empty", &registry.Auth{}, false},
		{"wrong", &registry.Auth{Username: "me", Password: "wrong"}, false},
		{"user", &registry.Auth{Username: "me", Password: "pass"}, true},
		{"base64", &registry.Auth{Auth: base64d}, true},
		{"token", &registry.Auth{RegistryToken: "token"}, true},
		{"for us", &registry.Auth{Username: "me", Password: "pass", ServerAddress: "http://" + reg.Host + "/v2/"}, true},
		{"for another", &registry.Auth{Username: "me", Password: "pass", ServerAddress: "other.example"}, false},
	} {
		tokens.Store(c.auth != nil && c.auth.RegistryToken != "")
		_, err := p.Store.Pull(t.Context(), reg.Host+"/private", registry.Caller{Auth: c.auth})
		if c.ok && err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if !c.ok && !errors.Is(err, fault.Invalid) {
			t.Errorf("%s: error is %v, want one of kind %v", c.name, err, fault.Invalid)
		}
	}
	if _, err := p.Store.Pull(t.Context(), reg.Host+"/private", registry.Caller{Auth: &registry.Auth{Auth: "no base64!"}}); !errors.Is(err, fault.Invalid) || strings.Contains(err.Error(), "no base64!") {
		t.Errorf("error is %v, want one of kind %v without the secret", err, fault.Invalid)
	}
	file := fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, reg.Host, base64d)
	if err := os.WriteFile(filepath.Join(p.Dir, "auth.json"), []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Store.Pull(t.Context(), reg.Host+"/private", registry.Caller{}); err != nil {
		t.Errorf("from the node's file: %v", err)
	}
}

// An image that the policy rejects fails with the reason that the kubelet knows, and
// nothing of it is fetched.
func TestPullAgainstPolicy(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	reg.Push("app", "latest", imagetest.Build(t, "gzip", "x"))
	policy := filepath.Join(p.Dir, "strict.json")
	if err := os.WriteFile(policy, []byte(`{"default":[{"type":"reject"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	p.Reopen(image.Options{Settings: image.Settings{Settings: registry.Settings{PolicyPath: policy}}})
	reg.Asked("")
	_, err := p.Store.Pull(t.Context(), reg.Host+"/app", registry.Caller{})
	reason, ok := errors.AsType[*registry.PullError](err)
	if !ok || reason.Reason != registry.SignatureValidationFailed || !strings.HasPrefix(err.Error(), "SignatureValidationFailed: ") {
		t.Errorf("error is %v", err)
	}
	if got := reg.Asked("/blobs/"); len(got) != 0 {
		t.Errorf("fetched %v", got)
	}
}
