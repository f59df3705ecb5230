package image_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Whatever the compression, the same files come out, and a layer that two images
// share is unpacked once.
func TestPull(t *testing.T) {
	reg := newRegistry(t)
	p := newPlace(t, reg)
	for _, compression := range []string{"gzip", "zstd", "plain"} {
		img := build(t, compression, "one", "two", "from "+compression)
		top := reg.push("app", compression, img)
		got := p.pull(reg.host + "/app:" + compression)
		if got.ID != img.id() || got.Size == 0 || got.CreatedAt.IsZero() {
			t.Errorf("%s: image is %+v", compression, got)
		}
		if want := []string{reg.host + "/app:" + compression}; !slices.Equal(got.Tags, want) {
			t.Errorf("%s: tags are %v", compression, got.Tags)
		}
		if want := []string{reg.host + "/app@" + top.String()}; !slices.Equal(got.Digests, want) {
			t.Errorf("%s: digests are %v", compression, got.Digests)
		}
		root := p.mount(compression, got.ID)
		if got := read(t, root, "layer0") + read(t, root, "layer1") + read(t, root, "top"); got != "onetwofrom "+compression {
			t.Errorf("%s: files hold %q", compression, got)
		}
	}
	if n := p.layers(); n != 5 {
		t.Errorf("%d layers on disk, want 5", n)
	}
}

// A tag is asked of the registry each time, because it may have moved; what the
// image has in common with one that is there is not fetched again.
func TestPullAgain(t *testing.T) {
	reg := newRegistry(t)
	p := newPlace(t, reg)
	old := build(t, "gzip", "base", "old")
	oldTop := reg.push("app", "v1", old)
	ref := reg.host + "/app:v1"
	first := p.pull(ref)
	reg.asked("")

	if again := p.pull(ref); again.ID != first.ID || !again.CreatedAt.Equal(first.CreatedAt) {
		t.Errorf("second pull gave %+v, want %+v", again, first)
	}
	if len(reg.asked("/manifests/v1")) == 0 {
		t.Error("the registry was not asked")
	}

	next := build(t, "gzip", "base", "new")
	reg.push("app", "v1", next)
	moved := p.pull(ref)
	if got := reg.asked("/blobs/"); len(got) != 2 { // the config and one layer
		t.Errorf("fetched %v", got)
	}
	if moved.ID != next.id() || !slices.Equal(moved.Tags, []string{ref}) {
		t.Errorf("image is %+v", moved)
	}
	left, err := p.store.Get(first.ID)
	if err != nil || len(left.Tags) != 0 || len(left.Digests) != 1 {
		t.Errorf("the old image is %+v (err %v), want one without tag", left, err)
	}

	// A digest says what it is: nobody is asked for one that is there.
	reg.asked("")
	if img := p.pull(reg.host + "/app@" + oldTop.String()); img.ID != first.ID {
		t.Errorf("got image %s", img.ID)
	}
	if got := reg.asked(""); len(got) != 0 {
		t.Errorf("asked for %v", got)
	}
}

// critest: a pull by digest leaves no repo tag, and exactly one repo digest.
func TestPullByDigest(t *testing.T) {
	reg := newRegistry(t)
	p := newPlace(t, reg)
	img := build(t, "gzip", "x")
	top := reg.push("app", "v1", img)
	for _, ref := range []string{"/app@" + top.String(), "/app:v1@" + top.String(), "/app:other@" + top.String()} {
		got := p.pull(reg.host + ref)
		if len(got.Tags) != 0 || !slices.Equal(got.Digests, []string{reg.host + "/app@" + top.String()}) {
			t.Errorf("pull of %s: tags %v digests %v", ref, got.Tags, got.Digests)
		}
	}
	// The right manifest under a wrong digest is not it.
	reg.put("/v2/app/manifests/v2", v1.MediaTypeImageManifest, img.manifest)
	wrong := digest.FromString("something else")
	reg.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		r.URL.Path = strings.Replace(r.URL.Path, wrong.String(), "v2", 1)
		return false
	})
	if got, err := p.store.Pull(t.Context(), reg.host+"/app@"+wrong.String(), image.Caller{}); err == nil {
		t.Errorf("got %+v for another digest", got)
	}
}

// Of a list, the image of this platform is taken, and the digest of the list is
// the one that is kept: it is what the user resolved.
func TestPullList(t *testing.T) {
	reg := newRegistry(t)
	p := newPlace(t, reg)
	ours := build(t, "gzip", "ours")
	other := buildOf(t, "gzip", v1.Image{Platform: v1.Platform{OS: "linux", Architecture: "s390x"}}, tarOf(t, map[string]string{"x": "y"}))
	top := reg.pushIndex("multi", "latest", other, ours)
	got := p.pull(reg.host + "/multi")
	if got.ID != ours.id() || !slices.Equal(got.Digests, []string{reg.host + "/multi@" + top.String()}) {
		t.Errorf("image is %+v", got)
	}
	reg.pushIndex("foreign", "latest", other)
	if _, err := p.store.Pull(t.Context(), reg.host+"/foreign", image.Caller{}); !errors.Is(err, fault.NotFound) {
		t.Errorf("error is %v, want one of kind %v", err, fault.NotFound)
	}
}

// A mirror is asked first, under the image's own name; without the image it is
// passed over.
func TestPullFromMirror(t *testing.T) {
	mirror, origin := newRegistry(t), newRegistry(t)
	p := newPlace(t)
	p.configure(fmt.Sprintf(`
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
		blocked = true`, mirror.host, origin.host, mirror.host))
	a, b := build(t, "gzip", "a"), build(t, "gzip", "b")
	mirror.push("team/app", "v1", a)
	origin.push("only/here", "v1", b)
	if got := p.pull("registry.example/team/app:v1"); got.ID != a.id() || got.Tags[0] != "registry.example/team/app:v1" {
		t.Errorf("image is %+v", got)
	}
	if got := p.pull("second.example/only/here:v1"); got.ID != b.id() {
		t.Errorf("image is %+v", got)
	}
	if len(mirror.asked("/only/here/")) == 0 {
		t.Error("the mirror was not asked first")
	}
	if _, err := p.store.Pull(t.Context(), "blocked.example/x", image.Caller{}); !errors.Is(err, fault.Invalid) {
		t.Errorf("error is %v, want one of kind %v", err, fault.Invalid)
	}
}

// Credentials come from the request, in each of its forms, or else from the node;
// those for another registry are not sent.
func TestPullWithCredentials(t *testing.T) {
	reg := newRegistry(t)
	p := newPlace(t, reg)
	img := build(t, "gzip", "secret")
	reg.push("private", "latest", img)
	var tokens atomic.Bool
	reg.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		header := r.Header.Get("Authorization")
		user, password, _ := r.BasicAuth()
		if user == "me" && password == "pass" || header == "Bearer token" {
			return false
		}
		scheme := "Basic"
		if tokens.Load() {
			scheme = "Bearer"
		}
		w.Header().Set("WWW-Authenticate", scheme+` realm="http://`+reg.host+`/nobody"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	base64d := base64.StdEncoding.EncodeToString([]byte("me:pass"))
	for _, c := range []struct {
		name string
		auth *image.Auth
		ok   bool
	}{
		{"none", nil, false},
		{"empty", &image.Auth{}, false},
		{"wrong", &image.Auth{Username: "me", Password: "wrong"}, false},
		{"user", &image.Auth{Username: "me", Password: "pass"}, true},
		{"base64", &image.Auth{Auth: base64d}, true},
		{"token", &image.Auth{RegistryToken: "token"}, true},
		{"for us", &image.Auth{Username: "me", Password: "pass", ServerAddress: "http://" + reg.host + "/v2/"}, true},
		{"for another", &image.Auth{Username: "me", Password: "pass", ServerAddress: "other.example"}, false},
	} {
		tokens.Store(c.auth != nil && c.auth.RegistryToken != "")
		_, err := p.store.Pull(t.Context(), reg.host+"/private", image.Caller{Auth: c.auth})
		if c.ok && err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if !c.ok && !errors.Is(err, fault.Invalid) {
			t.Errorf("%s: error is %v, want one of kind %v", c.name, err, fault.Invalid)
		}
	}
	if _, err := p.store.Pull(t.Context(), reg.host+"/private", image.Caller{Auth: &image.Auth{Auth: "no base64!"}}); !errors.Is(err, fault.Invalid) || strings.Contains(err.Error(), "no base64!") {
		t.Errorf("error is %v, want one of kind %v without the secret", err, fault.Invalid)
	}
	file := fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, reg.host, base64d)
	if err := os.WriteFile(filepath.Join(p.dir, "auth.json"), []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := p.store.Pull(t.Context(), reg.host+"/private", image.Caller{}); err != nil {
		t.Errorf("from the node's file: %v", err)
	}
}

// An image that the policy does not allow is refused with the reason that the
// kubelet knows, and nothing of it is fetched.
func TestPullAgainstPolicy(t *testing.T) {
	reg := newRegistry(t)
	p := newPlace(t, reg)
	reg.push("app", "latest", build(t, "gzip", "x"))
	policy := filepath.Join(p.dir, "strict.json")
	if err := os.WriteFile(policy, []byte(`{"default":[{"type":"reject"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	p.reopen(image.Options{Settings: image.Settings{PolicyPath: policy}})
	reg.asked("")
	_, err := p.store.Pull(t.Context(), reg.host+"/app", image.Caller{})
	reason, ok := errors.AsType[*image.PullError](err)
	if !ok || reason.Reason != image.SignatureValidationFailed || !strings.HasPrefix(err.Error(), "SignatureValidationFailed: ") {
		t.Errorf("error is %v", err)
	}
	if got := reg.asked("/blobs/"); len(got) != 0 {
		t.Errorf("fetched %v", got)
	}
}

// TestPullFails has what can be wrong with a registry's answer. Nothing may be
// left, and when the registry is right again, so is the pull.
func TestPullFails(t *testing.T) {
	layer := "/blobs/" // of the layer below; set when it is known
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	for _, c := range []struct {
		name   string
		answer func(w http.ResponseWriter, r *http.Request, data []byte) (done bool)
		want   error
		reason string
	}{
		{name: "other content", want: fault.Unavailable, answer: func(w http.ResponseWriter, r *http.Request, data []byte) bool {
			other := slices.Clone(data)
			other[len(other)/2] ^= 1
			w.Write(other)
			return true
		}},
		{name: "another layer", want: fault.Unavailable, answer: func(w http.ResponseWriter, r *http.Request, data []byte) bool {
			other, _ := compress(t, "gzip", tarOf(t, map[string]string{"evil": "x"}))
			w.Write(other)
			return true
		}},
		{name: "truncated", want: fault.Unavailable, answer: func(w http.ResponseWriter, r *http.Request, data []byte) bool {
			w.Write(data[:len(data)/2])
			return true
		}},
		{name: "too long", want: fault.Unavailable, answer: func(w http.ResponseWriter, r *http.Request, data []byte) bool {
			w.Write(append(slices.Clone(data), "more"...))
			return true
		}},
		{name: "no such layer", want: fault.NotFound, answer: func(w http.ResponseWriter, r *http.Request, data []byte) bool {
			w.WriteHeader(http.StatusNotFound)
			io.WriteString(w, `{"errors":[{"code":"BLOB_UNKNOWN"}]}`)
			return true
		}},
		{name: "no such page", want: fault.NotFound, answer: func(w http.ResponseWriter, r *http.Request, data []byte) bool {
			http.NotFound(w, r)
			return true
		}},
		{name: "server error", reason: image.RegistryUnavailable, answer: func(w http.ResponseWriter, r *http.Request, data []byte) bool {
			w.WriteHeader(http.StatusInternalServerError)
			return true
		}},
		{name: "silence before the layer", reason: image.RegistryUnavailable, answer: func(w http.ResponseWriter, r *http.Request, data []byte) bool {
			<-r.Context().Done()
			return true
		}},
		{name: "silence within the layer", reason: image.RegistryUnavailable, answer: func(w http.ResponseWriter, r *http.Request, data []byte) bool {
			w.Header().Set("Content-Length", fmt.Sprint(len(data)))
			w.Write(data[:len(data)/2])
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return true
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			reg := newRegistry(t)
			p := newPlace(t, reg)
			if strings.HasPrefix(c.name, "silence") {
				p.reopen(image.Options{Settings: image.Settings{ProgressTimeout: time.Second}})
			}
			img := build(t, "gzip", strings.Repeat("good", 1000), "too")
			reg.push("app", "v1", img)
			layer = "/blobs/" + digest.FromBytes(img.blobs[1]).String()
			reg.intercept(func(w http.ResponseWriter, r *http.Request) bool {
				return strings.HasSuffix(r.URL.Path, layer) && c.answer(w, r, img.blobs[1])
			})
			_, err := p.store.Pull(t.Context(), reg.host+"/app:v1", image.Caller{})
			failedWith(t, err, c.want, c.reason)
			if n := p.layers() + len(p.names("staging")); n != 0 {
				t.Errorf("%d layers are left", n)
			}
			if images := p.store.List(); len(images) != 0 {
				t.Errorf("images are %v", images)
			}
			reg.intercept(nil)
			p.reopen(image.Options{})
			got := p.pull(reg.host + "/app:v1")
			if s := read(t, p.mount("k", got.ID), "top"); s != "too" {
				t.Errorf("file holds %q", s)
			}
		})
	}
	t.Run("manifest", func(t *testing.T) {
		reg := newRegistry(t)
		p := newPlace(t, reg)
		_, err := p.store.Pull(t.Context(), reg.host+"/nothing:v1", image.Caller{})
		failedWith(t, err, fault.NotFound, "")
		_, err = p.store.Pull(t.Context(), "UPPER CASE", image.Caller{})
		failedWith(t, err, fault.Invalid, "")
		_, err = p.store.Pull(t.Context(), closed.Addr().String()+"/x", image.Caller{})
		failedWith(t, err, nil, image.RegistryUnavailable)
		p.reopen(image.Options{Settings: image.Settings{ProgressTimeout: time.Second}})
		reg.intercept(func(w http.ResponseWriter, r *http.Request) bool { <-r.Context().Done(); return true })
		_, err = p.store.Pull(t.Context(), reg.host+"/nothing:v1", image.Caller{})
		failedWith(t, err, nil, image.RegistryUnavailable)
	})
}

func failedWith(t *testing.T, err, kind error, reason string) {
	t.Helper()
	if kind != nil && !errors.Is(err, kind) {
		t.Errorf("error is %v, want one of kind %v", err, kind)
	}
	p, ok := errors.AsType[*image.PullError](err)
	if reason != "" && (!ok || p.Reason != reason || !strings.HasPrefix(err.Error(), reason+": ")) {
		t.Errorf("error is %v, want %s", err, reason)
	}
}

// A manifest that does not fit its config is refused before anything is unpacked.
func TestPullOfNonsense(t *testing.T) {
	reg := newRegistry(t)
	p := newPlace(t, reg)
	for name, change := range map[string]func(b *built){
		"fewer layers": func(b *built) {
			b.manifest = []byte(strings.Replace(string(b.manifest), `"layers":[`, `"layers":[{"mediaType":"x","digest":"`+b.desc.Digest.String()+`","size":3},`, 1))
		},
		"schema 1": func(b *built) { b.desc.MediaType = "application/vnd.docker.distribution.manifest.v1+json" },
		"no JSON":  func(b *built) { b.manifest = []byte("{") },
	} {
		img := build(t, "gzip", "a")
		change(img)
		reg.push("app", "bad", img)
		if _, err := p.store.Pull(t.Context(), reg.host+"/app:bad", image.Caller{}); err == nil {
			t.Errorf("%s: pulled", name)
		}
	}
	wrong := build(t, "gzip", "a")
	wrong.config = []byte(strings.Replace(string(wrong.config), digest.FromBytes(wrong.plain[0]).String(), digest.FromString("other").String(), 1))
	m := v1.Manifest{MediaType: v1.MediaTypeImageManifest, Config: v1.Descriptor{MediaType: v1.MediaTypeImageConfig, Digest: digest.FromBytes(wrong.config), Size: int64(len(wrong.config))},
		Layers: []v1.Descriptor{{MediaType: v1.MediaTypeImageLayerGzip, Digest: digest.FromBytes(wrong.blobs[0]), Size: int64(len(wrong.blobs[0]))}}}
	m.SchemaVersion = 2
	wrong.manifest = mustJSON(t, m)
	reg.push("app", "wrong", wrong)
	_, err := p.store.Pull(t.Context(), reg.host+"/app:wrong", image.Caller{})
	failedWith(t, err, fault.Unavailable, "")
	evil := buildOf(t, "gzip", v1.Image{}, tarOf(t, map[string]string{"../../evil": "x"}))
	reg.push("app", "evil", evil)
	_, err = p.store.Pull(t.Context(), reg.host+"/app:evil", image.Caller{})
	failedWith(t, err, fault.Invalid, "")
	if n := p.layers() + len(p.names("staging")); n != 0 {
		t.Errorf("%d layers are left", n)
	}
}

// Pulls of one image at once are one pull; so are the layers that two images have
// in common.
func TestPullsJoin(t *testing.T) {
	reg := newRegistry(t)
	p := newPlace(t, reg)
	base := strings.Repeat("base", 10)
	a, b := build(t, "gzip", base, "a"), build(t, "gzip", base, "b")
	reg.push("a", "latest", a)
	reg.push("b", "latest", b)
	reg.asked("")

	// The layer in common is held back until both pulls are under way.
	common := "/blobs/" + digest.FromBytes(a.blobs[0]).String()
	both := make(chan struct{})
	var others sync.WaitGroup
	others.Add(2)
	go func() { others.Wait(); close(both) }()
	var once [2]sync.Once
	reg.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		for i, img := range []*built{a, b} {
			if strings.HasSuffix(r.URL.Path, digest.FromBytes(img.blobs[1]).String()) {
				once[i].Do(others.Done)
			}
		}
		if strings.HasSuffix(r.URL.Path, common) {
			<-both
		}
		return false
	})
	var all sync.WaitGroup
	for i := range 12 {
		ref := reg.host + []string{"/a", "/b"}[i%2]
		want := []string{a.id(), b.id()}[i%2]
		all.Go(func() {
			img, err := p.store.Pull(t.Context(), ref, image.Caller{})
			if err != nil || img.ID != want {
				t.Errorf("pull of %s: %s (err %v)", ref, img.ID, err)
			}
		})
	}
	all.Wait()
	if got := reg.asked("/blobs/"); len(got) != 5 { // two configs, three layers
		t.Errorf("fetched %v", got)
	}
}

// A caller that leaves takes nothing from the others; the last one to leave ends
// the pull.
func TestPullAbandoned(t *testing.T) {
	reg := newRegistry(t)
	p := newPlace(t, reg)
	img := build(t, "gzip", strings.Repeat("x", 1000), "y")
	reg.push("app", "latest", img)
	begun, goOn := make(chan struct{}, 10), make(chan struct{})
	ended := make(chan struct{}, 10)
	reg.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, digest.FromBytes(img.blobs[0]).String()) {
			return false
		}
		begun <- struct{}{}
		select {
		case <-goOn:
			return false
		case <-r.Context().Done():
			ended <- struct{}{}
			return true
		}
	})
	pull := func(ctx context.Context) chan error {
		done := make(chan error, 1)
		go func() {
			_, err := p.store.Pull(ctx, reg.host+"/app", image.Caller{})
			done <- err
		}()
		return done
	}

	one, cancelOne := context.WithCancel(t.Context())
	first := pull(one)
	<-begun
	two, cancelTwo := context.WithCancel(t.Context())
	second := pull(two)
	cancelOne()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("first: %v", err)
	}
	cancelTwo()
	if err := <-second; !errors.Is(err, context.Canceled) {
		t.Errorf("second: %v", err)
	}
	<-ended

	// The next one begins anew.
	third := pull(t.Context())
	<-begun
	close(goOn)
	if err := <-third; err != nil {
		t.Errorf("third: %v", err)
	}
}

// A layer that another pull unpacks is waited for; if that pull fails for reasons
// of its own, this one does the work.
func TestLayerOfFailedPull(t *testing.T) {
	reg := newRegistry(t)
	p := newPlace(t, reg)
	shared := tarOf(t, map[string]string{"shared": strings.Repeat("s", 5000)})
	bad := buildOf(t, "gzip", v1.Image{}, shared, tarOf(t, map[string]string{"a": "bad"}))
	good := buildOf(t, "gzip", v1.Image{}, shared, tarOf(t, map[string]string{"a": "good"}))
	reg.push("bad", "latest", bad)
	reg.push("good", "latest", good)
	badBegun, goodWaits := make(chan struct{}), make(chan struct{})
	var badOnce, goodOnce sync.Once
	reg.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case strings.HasPrefix(r.URL.Path, "/v2/bad/") && strings.HasSuffix(r.URL.Path, digest.FromBytes(bad.blobs[0]).String()):
			badOnce.Do(func() { close(badBegun) })
			<-goodWaits
			io.WriteString(w, "not the layer")
			return true
		case strings.HasPrefix(r.URL.Path, "/v2/good/") && strings.HasSuffix(r.URL.Path, digest.FromBytes(good.blobs[1]).String()):
			goodOnce.Do(func() { close(goodWaits) })
		}
		return false
	})
	failed := make(chan error, 1)
	go func() {
		_, err := p.store.Pull(t.Context(), reg.host+"/bad", image.Caller{})
		failed <- err
	}()
	<-badBegun
	if img := p.pull(reg.host + "/good"); img.ID != good.id() {
		t.Errorf("image is %s", img.ID)
	}
	failedWith(t, <-failed, fault.Unavailable, "")
}
