package probe

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// The request equals the kubelet's for the same action.
func TestRequest(t *testing.T) {
	c := &v1.Container{Name: "c", Ports: []v1.ContainerPort{{Name: "web", ContainerPort: 8080}}}
	for name, test := range map[string]struct {
		action v1.HTTPGetAction
		url    string
		host   string // "" means that of the URL
		header http.Header
	}{
		"the pod":       {v1.HTTPGetAction{Port: intstr.FromInt32(80)}, "http://10.0.0.7:80", "", http.Header{"User-Agent": {"kube-probe/1.36"}, "Accept": {"*/*"}}},
		"a named port":  {v1.HTTPGetAction{Port: intstr.FromString("web"), Path: "/a?b=c"}, "http://10.0.0.7:8080/a?b=c", "", nil},
		"a number":      {v1.HTTPGetAction{Port: intstr.FromString("81"), Path: "x"}, "http://10.0.0.7:81/x", "", nil},
		"scheme, host":  {v1.HTTPGetAction{Port: intstr.FromInt32(443), Scheme: v1.URISchemeHTTPS, Host: "a.test", Path: "/"}, "https://a.test:443/", "", nil},
		"IPv6":          {v1.HTTPGetAction{Port: intstr.FromInt32(80), Host: "fd00::7"}, "http://[fd00::7]:80", "", nil},
		"odd path":      {v1.HTTPGetAction{Port: intstr.FromInt32(80), Path: "/%zz"}, "http://10.0.0.7:80/%25zz", "", nil},
		"another place": {v1.HTTPGetAction{Port: intstr.FromInt32(80), Path: "https://evil.test/a"}, "http://10.0.0.7:80/a", "", nil},
		"its headers": {v1.HTTPGetAction{Port: intstr.FromInt32(80), HTTPHeaders: []v1.HTTPHeader{
			{Name: "host", Value: "b.test"}, {Name: "X-A", Value: "1"}, {Name: "x-a", Value: "2"}, {Name: "User-Agent", Value: "me"}, {Name: "Accept", Value: ""},
		}}, "http://10.0.0.7:80", "b.test", http.Header{"X-A": {"1", "2"}, "User-Agent": {"me"}, "Accept": nil}},
	} {
		req, err := HTTPRequest(&test.action, c, "10.0.0.7", "probe")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if req.Method != http.MethodGet || req.URL.String() != test.url {
			t.Errorf("%s: %s %s, want %s", name, req.Method, req.URL, test.url)
		}
		want := test.host
		if want == "" {
			u, err := url.Parse(test.url)
			if err != nil {
				t.Fatal(err)
			}
			want = u.Host
		}
		if req.Host != want {
			t.Errorf("%s: host %q, want %q", name, req.Host, want)
		}
		for key, want := range test.header {
			if got := req.Header[key]; strings.Join(got, "|") != strings.Join(want, "|") || (got == nil) != (want == nil) {
				t.Errorf("%s: %s is %q, want %q", name, key, got, want)
			}
		}
	}
}

// An unknown port is an error that names the container.
func TestPort(t *testing.T) {
	c := &v1.Container{Name: "c", Ports: []v1.ContainerPort{{Name: "web", ContainerPort: 8080}}}
	for _, p := range []intstr.IntOrString{intstr.FromInt32(0), intstr.FromInt32(-1), intstr.FromInt32(65536), intstr.FromString("no"), intstr.FromString(""), intstr.FromString("70000")} {
		if n, err := Port(p, c); err == nil || !strings.Contains(err.Error(), "container c has no port") {
			t.Errorf("%s is port %d (%v)", p.String(), n, err)
		}
	}
}

// A pod's certificate need not be signed by a known authority. A redirect is followed only to the
// pod itself, because a pod could otherwise make the node send requests anywhere. No connection is
// kept.
func TestClient(t *testing.T) {
	elsewhere := false
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere = true }))
	defer other.Close()
	away := strings.Replace(other.URL, "127.0.0.1", "localhost", 1)
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/away":
			http.Redirect(w, r, away, http.StatusFound)
		case "/here":
			http.Redirect(w, r, "/end", http.StatusFound)
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		case "/end":
			if !r.Close {
				t.Error("the connection would be kept")
			}
		}
	}))
	defer s.Close()
	client := HTTPClient()
	for path, want := range map[string]int{"/end": http.StatusOK, "/here": http.StatusOK, "/away": http.StatusFound} {
		resp, err := client.Get(s.URL + path)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: %s, want %d", path, resp.Status, want)
		}
	}
	if elsewhere {
		t.Error("a redirect to another host was followed")
	}
	if _, err := client.Get(s.URL + "/loop"); err == nil || !strings.Contains(err.Error(), "10 redirects") {
		t.Errorf("a circle: %v", err)
	}
}
