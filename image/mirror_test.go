package image_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/test/imagetest"
)

// A mirror is a third party's host. The request's credentials for the registry are not sent
// to it, in whichever form they come.
func TestMirrorSeesNoCredentials(t *testing.T) {
	mirror, origin := imagetest.NewRegistry(t), imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t)
	p.Mirrored(origin, mirror)
	mirror.Push("app", "v1", imagetest.Build(t, "gzip", "a"))
	origin.Push("only/here", "v1", imagetest.Build(t, "gzip", "b"))
	encoded := base64.StdEncoding.EncodeToString([]byte("me:pass"))
	for _, scheme := range []string{"Bearer", "Basic"} {
		atMirror, atOrigin := mirror.Overhear(scheme), origin.Overhear(scheme)
		for _, auth := range []*registry.Auth{{RegistryToken: "secret"}, {Username: "me", Password: "pass"}, {Auth: encoded}} {
			for _, ref := range []string{"/app:v1", "/only/here:v1"} {
				if _, err := p.Store.Pull(t.Context(), origin.Host+ref, registry.Caller{Auth: auth}); err != nil {
					t.Errorf("%s %+v: %v", scheme, auth, err)
				}
			}
			if got := atMirror(); strings.Contains(got, "secret") || strings.Contains(got, encoded) {
				t.Errorf("%s: the mirror got %q", scheme, got)
			}
			if got, want := atOrigin(), auth.RegistryToken; scheme == "Bearer" && !strings.Contains(got, want) {
				t.Errorf("%s: the registry got %q", scheme, got)
			}
		}
	}
}

// The server of a hosts.toml is the registry itself, whatever its address: it gets the
// pod's credentials.
func TestServerOfHostsGetsCredentials(t *testing.T) {
	server, mirror := imagetest.NewRegistry(t), imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t)
	hosts := filepath.Join(p.Dir, "certs.d")
	p.Trusting(image.Settings{Settings: registry.Settings{HostsDirs: []string{hosts}}})
	imagetest.WriteFile(t, filepath.Join(hosts, "registry.example", "hosts.toml"), fmt.Sprintf("server = \"http://%s\"\n[host.\"http://%s\"]\n", server.Host, mirror.Host))
	server.Push("private", "v1", imagetest.Build(t, "gzip", "a"))
	server.Guard("private")
	if _, err := p.Store.Pull(t.Context(), "registry.example/private:v1", registry.Caller{Auth: somebody}); !errors.Is(err, fault.Invalid) {
		t.Errorf("error is %v, want one of kind %v", err, fault.Invalid)
	}
	shown := mirror.Overhear("Basic")
	got, err := p.Store.Pull(t.Context(), "registry.example/private:v1", registry.Caller{Auth: me})
	if err != nil || got.Tags[0] != "registry.example/private:v1" {
		t.Errorf("image %+v, error %v", got, err)
	}
	if s := shown(); strings.Contains(s, base64.StdEncoding.EncodeToString([]byte("me:pass"))) {
		t.Errorf("the mirror got %q", s)
	}
	seen := server.Overhear("Bearer")
	if _, err := p.Store.Pull(t.Context(), "registry.example/private:v1", registry.Caller{Auth: &registry.Auth{RegistryToken: "secret"}}); err != nil || !strings.Contains(seen(), "Bearer secret") {
		t.Errorf("the token was not sent: %v", err)
	}
}

// A mirror that accepts connections and does not answer must not block the pull: the next host gets
// its full time, and the mirror is skipped for a while.
func TestSilentMirrorIsPassedOver(t *testing.T) {
	mirror, origin := imagetest.NewRegistry(t), imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t)
	p.Mirrored(origin, mirror)
	p.Trusting(image.Settings{Settings: registry.Settings{ProgressTimeout: time.Second}})
	origin.Push("app", "v1", imagetest.Build(t, "gzip", "a"))
	origin.Push("app", "v2", imagetest.Build(t, "gzip", "b"))
	var asked atomic.Int32
	mirror.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		asked.Add(1)
		<-r.Context().Done()
		return true
	})
	p.Pull(origin.Host + "/app:v1")
	n := asked.Load()
	if n == 0 {
		t.Error("the mirror was not asked")
	}
	p.Pull(origin.Host + "/app:v2")
	if asked.Load() != n {
		t.Error("the mirror was asked again at once")
	}
	// The mirror is still asked when the registry fails.
	origin.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		http.Error(w, "", http.StatusBadGateway)
		return true
	})
	mirror.Intercept(nil)
	mirror.Push("app", "v3", imagetest.Build(t, "gzip", "c"))
	p.Pull(origin.Host + "/app:v3")
}

// A dead mirror costs its timeout only once, whichever part gives up on it: here the library gives
// up on the TLS handshake, before the mirror's time has passed.
func TestDeadMirrorIsPassedOver(t *testing.T) {
	origin := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t)
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer dead.Close()
	var asked atomic.Int32
	go func() {
		for {
			c, err := dead.Accept()
			if err != nil {
				return
			}
			defer c.Close() // with the listener
			asked.Add(1)
		}
	}()
	p.Configure(fmt.Sprintf("[[registry]]\nlocation = %q\ninsecure = true\n[[registry.mirror]]\nlocation = %q\n", origin.Host, dead.Addr()))
	origin.Push("app", "v1", imagetest.Build(t, "gzip", "a"))
	origin.Push("app", "v2", imagetest.Build(t, "gzip", "b"))
	p.Pull(origin.Host + "/app:v1")
	n := asked.Load()
	if n == 0 {
		t.Error("the mirror was not asked")
	}
	p.Pull(origin.Host + "/app:v2")
	if asked.Load() != n {
		t.Error("the mirror was asked again at once")
	}
}

// A mirror may have an image's manifest but lack a layer, or fail to send it.
func TestLayerComesFromTheNextPlace(t *testing.T) {
	mirror, origin := imagetest.NewRegistry(t), imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t)
	p.Mirrored(origin, mirror)
	p.Trusting(image.Settings{Settings: registry.Settings{ProgressTimeout: time.Second}})
	for name, answer := range map[string]func(w http.ResponseWriter, r *http.Request){
		"missing": http.NotFound,
		"broken":  func(w http.ResponseWriter, r *http.Request) { http.Error(w, "", http.StatusBadGateway) },
		"silent":  func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	} {
		img := imagetest.Build(t, "gzip", "a of "+name, "b of "+name)
		mirror.Push(name, "v1", img)
		origin.Push(name, "v1", img)
		mirror.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if strings.Contains(r.URL.Path, "/blobs/") {
				answer(w, r)
				return true
			}
			return false
		})
		if got := p.Pull(origin.Host + "/" + name + ":v1"); got.ID != img.ID() {
			t.Errorf("%s: image is %s", name, got.ID)
		}
		mirror.Intercept(nil)
	}
}

// A temporary error must have its reason: an outage and a rate limit need different remedies.
func TestRateLimitIsNamed(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	p.Trusting(image.Settings{Settings: registry.Settings{ProgressTimeout: time.Second}})
	img := imagetest.Build(t, "gzip", "a")
	reg.Push("app", "v1", img)
	for _, part := range []string{"/manifests/", "/blobs/"} {
		reg.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if strings.Contains(r.URL.Path, part) {
				w.Header().Set("Retry-After", "2")
				http.Error(w, "slowly", http.StatusTooManyRequests)
				return true
			}
			return false
		})
		_, err := p.Store.Pull(t.Context(), reg.Host+"/app:v1", registry.Caller{})
		failedWith(t, err, nil, registry.RegistryUnavailable)
		if err == nil || !strings.Contains(err.Error(), "429") {
			t.Errorf("%s: error is %v", part, err)
		}
	}
	reg.Intercept(nil)
	p.Pull(reg.Host + "/app:v1")
}

// A registry's error text ends up in events and logs, which other users read. It must be short, and
// contain neither credentials for the registry's storage nor the response of a host to which the
// registry has redirected the request.
func TestErrorsAreShortAndKeepSecrets(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	reg.Push("app", "v1", imagetest.Build(t, "gzip", "a"))
	for name, answer := range map[string]func(w http.ResponseWriter, r *http.Request){
		"long": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprintf(w, `{"errors":[{"code":"DENIED","message":%q}]}`, strings.Repeat("no ", 100_000))
		},
		"signed": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/blob?X-Signature=secret", http.StatusTemporaryRedirect)
		},
	} {
		reg.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if strings.Contains(r.URL.Path, "/manifests/") {
				answer(w, r)
				return true
			}
			return false
		})
		_, err := p.Store.Pull(t.Context(), reg.Host+"/app:v1", registry.Caller{})
		if err == nil || len(err.Error()) > 2048 || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: error of %d bytes: %.3000v", name, len(fmt.Sprint(err)), err)
		}
	}
	reg.Intercept(nil)
	p.Pull(reg.Host + "/app:v1")
}

// A registry names the host that issues tokens, and may name one that only the node can reach. The
// response of that host must never be part of an error.
func TestAnswerForTokenIsSecret(t *testing.T) {
	reg, mirror := imagetest.NewRegistry(t), imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t)
	p.Mirrored(reg, mirror)
	img := imagetest.Build(t, "gzip", "a")
	reg.Push("app", "v1", img)
	for _, answer := range []string{"secret of the node", `"secret"`, `["secret"]`, `{"token":["secret"]}`, `{"issued_at":"secret"}`} {
		challenge := func(host string) func(w http.ResponseWriter, r *http.Request) bool {
			asked := 0
			return func(w http.ResponseWriter, r *http.Request) bool {
				switch r.URL.Path {
				case "/v2/":
					w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="http://%s/metadata"`, host))
					w.WriteHeader(http.StatusUnauthorized)
					return true
				case "/metadata":
					if asked++; asked == 1 && host == reg.Host {
						io.WriteString(w, `{"token":"x","issued_at":"2000-01-01T00:00:00Z"}`) // it has ended
						return true
					}
					io.WriteString(w, answer)
					return true
				}
				return false
			}
		}
		reg.Intercept(challenge(reg.Host))
		mirror.Intercept(challenge(mirror.Host))
		_, err := p.Store.Pull(t.Context(), reg.Host+"/app:v1", registry.Caller{})
		failedWith(t, err, nil, registry.RegistryUnavailable)
		if strings.Contains(fmt.Sprint(err), "secret") {
			t.Errorf("%s: error is %v", answer, err)
		}
	}
	reg.Intercept(nil)
	mirror.Intercept(nil)
	p.Pull(reg.Host + "/app:v1")
}

// A registry that fails within a pull was reachable: that no mirror has the image does not mean
// that the image does not exist.
func TestRegistryDiesWithinPull(t *testing.T) {
	mirror, origin := imagetest.NewRegistry(t), imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t)
	p.Mirrored(origin, mirror)
	img := imagetest.Build(t, "gzip", "a")
	origin.Push("app", "v1", img)
	breaks := func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/blobs/") {
			panic(http.ErrAbortHandler)
		}
		return false
	}
	origin.Intercept(breaks)
	_, err := p.Store.Pull(t.Context(), origin.Host+"/app:v1", registry.Caller{})
	failedWith(t, err, nil, registry.RegistryUnavailable)

	// The same if the mirror fails, and the registry itself does not know the image.
	mirror.Push("other", "v1", img)
	mirror.Intercept(breaks)
	_, err = p.Store.Pull(t.Context(), origin.Host+"/other:v1", registry.Caller{})
	failedWith(t, err, nil, registry.RegistryUnavailable)
	if errors.Is(err, fault.NotFound) {
		t.Errorf("%v is NotFound", err)
	}
}
