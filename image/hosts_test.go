package image_test

import (
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/test/imagetest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// The hosts.toml of a registry lists its mirrors in order, as for containerd;
// registries.conf takes precedence.
func TestHosts(t *testing.T) {
	mirror, proxy := imagetest.NewRegistry(t), imagetest.NewRegistry(t)
	tls := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.URL.Host, r.URL.Scheme = mirror.Host, "http"
		mirror.Forward(w, r)
	}))
	t.Cleanup(tls.Close)
	p := imagetest.NewPlace(t)
	hosts := filepath.Join(p.Dir, "certs.d")
	open := func() {
		p.Trusting(image.Settings{Settings: registry.Settings{HostsDirs: []string{filepath.Join(p.Dir, "none"), hosts}}})
	}
	open()
	hostsFile := func(registry, text string) {
		t.Helper()
		imagetest.WriteFile(t, filepath.Join(hosts, registry, "hosts.toml"), text)
	}
	a, b := imagetest.Build(t, "gzip", "a"), imagetest.Build(t, "gzip", "b")
	mirror.Push("team/app", "v1", a)
	top := mirror.Push("team/app", "v2", b)
	proxy.Push("cache/team/app", "v1", a)

	hostsFile("plain.example", fmt.Sprintf("server = \"https://127.0.0.1:1\"\n[host.\"http://127.0.0.1:2\"]\n[host.\"http://%s\"]\ncapabilities = [\"pull\", \"resolve\"]\n", mirror.Host))
	if img := p.Pull("plain.example/team/app:v1"); img.ID != a.ID() || img.Tags[0] != "plain.example/team/app:v1" {
		t.Errorf("image is %+v", img)
	}
	// A mirror below a path, which gets the registry's name as a parameter.
	hostsFile("path.example", fmt.Sprintf("[host.\"http://%s/v2/cache\"]\noverride_path = true\n", proxy.Host))
	p.Pull("path.example/team/app:v1")
	// containerd takes an address that ends with /v2 for one of the API, and puts /v2 behind others.
	for i, host := range []string{"[host.\"http://%s/v2\"]\n", "[host.\"http://%s/v2/\"]\n", "[host.\"http://%s/v2\"]\noverride_path = true\n", "server = \"http://%s/v2\"\n", "server = \"http://%s/v2/\"\nskip_verify = true\ncapabilities = [\"Pull\", \"RESOLVE\"]\n"} {
		name := fmt.Sprintf("api%d.example", i)
		hostsFile(name, fmt.Sprintf(host, mirror.Host))
		if _, err := p.Store.Pull(t.Context(), name+"/team/app:v1", registry.Caller{}); err != nil {
			t.Errorf("%s: %v", strings.TrimSpace(host), err)
		}
	}
	// A host that the library cannot parse does not prevent requests to the others.
	hostsFile("v6.example", fmt.Sprintf("[host.\"http://[::1]:5000\"]\n[host.\"http://%s\"]\n", mirror.Host))
	p.Pull("v6.example/team/app:v1")
	proxy.Push("cache/v2/team/app", "v1", a)
	hostsFile("below.example", fmt.Sprintf("[host.\"http://%s/v2/cache\"]\n", proxy.Host))
	p.Pull("below.example/team/app:v1")
	// A CA for one host, named relative to the file, and then none.
	hostsFile("tls.example_5000_", fmt.Sprintf("[host.%q]\nca = \"ca.pem\"\n", tls.URL))
	imagetest.WriteFile(t, filepath.Join(hosts, "tls.example_5000_", "ca.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: tls.Certificate().Raw})))
	p.Pull("tls.example:5000/team/app:v1")
	hostsFile("skip.example", fmt.Sprintf("[host.%q]\nskip_verify = true\n", tls.URL))
	p.Pull("skip.example/team/app:v1")
	hostsFile("strict.example", fmt.Sprintf("server = \"https://127.0.0.1:1\"\n[host.%q]\n", tls.URL))
	if _, err := p.Store.Pull(t.Context(), "strict.example/team/app:v1", registry.Caller{}); err == nil {
		t.Error("a certificate of an unknown CA was accepted")
	}
	// Without a hosts.toml, the files have Docker's names.
	address := strings.TrimPrefix(tls.URL, "https://")
	own := filepath.Join(hosts, strings.Replace(address, ":", "_", 1)+"_")
	if _, err := p.Store.Pull(t.Context(), address+"/team/app:v1", registry.Caller{}); err == nil {
		t.Error("a certificate of an unknown CA was accepted")
	}
	imagetest.WriteFile(t, filepath.Join(own, "any.crt"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: tls.Certificate().Raw})))
	p.Pull(address + "/team/app:v1")
	imagetest.WriteFile(t, filepath.Join(own, "me.cert"), "garbage")
	if _, err := p.Store.Pull(t.Context(), address+"/team/app:v2", registry.Caller{}); err == nil {
		t.Error("a pull with a damaged client certificate succeeded")
	}
	// A host without the capability resolve is asked by digest only; one for pushes never.
	hostsFile("digest.example", fmt.Sprintf("server = \"https://127.0.0.1:1\"\n[host.\"http://%s\"]\ncapabilities = [\"pull\"]\n", mirror.Host))
	if _, err := p.Store.Pull(t.Context(), "digest.example/team/app:v2", registry.Caller{}); err == nil {
		t.Error("a tag was requested from a host that cannot resolve")
	}
	p.Pull("digest.example/team/app@" + top.String())
	hostsFile("push.example", fmt.Sprintf("server = \"https://127.0.0.1:1\"\n[host.\"http://%s\"]\ncapabilities = [\"push\"]\n", mirror.Host))
	if _, err := p.Store.Pull(t.Context(), "push.example/team/app:v1", registry.Caller{}); err == nil {
		t.Error("a host for pushes was pulled from")
	}
	// _default is for registries without a directory of their own.
	hostsFile("_default", fmt.Sprintf("[host.\"http://%s\"]\n", mirror.Host))
	p.Pull("any.example/team/app:v1")
	// registries.conf takes precedence.
	p.Configure("[[registry]]\nlocation = \"plain.example\"\nblocked = true\n")
	if _, err := p.Store.Pull(t.Context(), "plain.example/team/app:v2", registry.Caller{}); !errors.Is(err, fault.Invalid) {
		t.Errorf("error is %v, want one of kind %v", err, fault.Invalid)
	}
}

// What cannot be translated is reported with its file and key, and such a host is not used.
func TestHostsUntranslated(t *testing.T) {
	mirror := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t)
	mirror.Push("app", "v1", imagetest.Build(t, "gzip", "a"))
	hosts := filepath.Join(p.Dir, "certs.d")
	imagetest.WriteFile(t, filepath.Join(hosts, "a.example", "hosts.toml"), fmt.Sprintf(`
server = "https://127.0.0.1:1"
surprise = 1
[host."http://%s"]
  [host."http://%[1]s".header]
    x-tenant = ["blue"]
[host."http://%[1]s/sub"]
[host."http://%[1]s/sub/v2"]
  override_path = true
  dial_timeout = "1s"
[host."ftp://x"]
[host."https://[::1]:5000"]
[host."https://y"]
  client = 3
[host."https://z"]
  capabilities = ["resolve"]
`, mirror.Host))
	imagetest.WriteFile(t, filepath.Join(hosts, "b.example", "hosts.toml"), "server = ")
	var log strings.Builder
	p.Log = slog.New(slog.NewTextHandler(&log, nil))
	p.Trusting(image.Settings{Settings: registry.Settings{HostsDirs: []string{hosts}}})
	imagetest.WriteFile(t, filepath.Join(p.Dir, "policies", "bad.json"), "{")
	checked := strings.Join(image.Check(image.Settings{Settings: registry.Settings{HostsDirs: []string{hosts}, PolicyPath: filepath.Join(p.Dir, "nothing"), PolicyDir: filepath.Join(p.Dir, "policies")}}), "\n")
	for _, want := range []string{"nothing: no such file", "bad.json", "a.example/hosts.toml: surprise", "b.example/hosts.toml"} {
		if !strings.Contains(checked, want) {
			t.Errorf("the check does not say %q: %s", want, checked)
		}
	}
	for _, want := range []string{"a.example/hosts.toml", "surprise: it is not known", ".header: headers cannot be sent", "without override_path", "it must begin with /v2", "dial_timeout", "ftp://x", "or IPv4 address only", "client: want files", "resolves must also pull", "b.example/hosts.toml"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log does not say %q", want)
		}
	}
	if _, err := p.Store.Pull(t.Context(), "a.example/app:v1", registry.Caller{}); err == nil {
		t.Error("a host was asked without its header")
	}
	if _, err := p.Store.Pull(t.Context(), "b.example/app:v1", registry.Caller{}); !errors.Is(err, fault.Invalid) {
		t.Errorf("broken hosts.toml: %v, want an error of kind %v", err, fault.Invalid)
	}
	if t.Failed() {
		t.Log(log.String())
	}
}

// On a node that reaches only its mirrors, an image that none of them has does not exist;
// if one of them cannot answer, its existence is unknown.
func TestNotInMirrors(t *testing.T) {
	one, two := imagetest.NewRegistry(t), imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t)
	p.Configure(fmt.Sprintf(`
		[[registry]]
		prefix = "origin.example"
		location = "127.0.0.1:1"
		[[registry.mirror]]
		location = %q
		insecure = true
		[[registry.mirror]]
		location = "%s/cache"
		insecure = true`, one.Host, two.Host))
	one.Push("app", "v1", imagetest.Build(t, "gzip", "a"))
	if _, err := p.Store.Pull(t.Context(), "origin.example/app:typo", registry.Caller{}); !errors.Is(err, fault.NotFound) {
		t.Errorf("error is %v, want one of kind %v", err, fault.NotFound)
	}
	// The answer that there is no image for this platform also counts.
	far := imagetest.BuildOf(t, "gzip", v1.Image{Platform: v1.Platform{OS: "linux", Architecture: "s390x"}}, imagetest.TarOf(t, map[string]string{"x": "y"}))
	one.PushIndex("app", "far", far)
	if _, err := p.Store.Pull(t.Context(), "origin.example/app:far", registry.Caller{}); !errors.Is(err, fault.NotFound) {
		t.Errorf("error is %v, want one of kind %v", err, fault.NotFound)
	}
	two.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		http.Error(w, "", http.StatusBadGateway)
		return true
	})
	_, err := p.Store.Pull(t.Context(), "origin.example/app:typo", registry.Caller{})
	if pe, ok := errors.AsType[*registry.PullError](err); !ok || pe.Reason != registry.RegistryUnavailable {
		t.Errorf("error is %v, want %s", err, registry.RegistryUnavailable)
	}
}
