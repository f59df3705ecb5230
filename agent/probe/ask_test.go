package probe_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/agent/probe"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func portOf(t *testing.T, addr net.Addr) intstr.IntOrString {
	t.Helper()
	return intstr.FromInt(addr.(*net.TCPAddr).Port)
}

// Healthy and unhealthy servers on loopback, with every kind of probe except commands.
func TestAsk(t *testing.T) {
	handler := http.NewServeMux()
	handler.HandleFunc("/ok", func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.UserAgent(), "kube-probe/") || r.Header.Get("X-Mine") != "1" || r.Host != "web.example" {
			w.WriteHeader(http.StatusTeapot)
		}
	})
	handler.HandleFunc("/bad", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		fmt.Fprint(w, "secret")
	})
	handler.HandleFunc("/near", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/bad", http.StatusFound) })
	handler.HandleFunc("/far", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://far.invalid/", http.StatusFound)
	})
	block := make(chan struct{})
	handler.HandleFunc("/slow", func(http.ResponseWriter, *http.Request) { <-block })
	plain, secure := httptest.NewServer(handler), httptest.NewTLSServer(handler)
	t.Cleanup(func() { close(block); plain.Close(); secure.Close() })

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g, h := grpc.NewServer(), health.NewServer()
	h.SetServingStatus("down", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	grpc_health_v1.RegisterHealthServer(g, h)
	go g.Serve(l)
	t.Cleanup(g.Stop)

	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody.Close()

	get := func(path string) v1.ProbeHandler {
		return v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: path, Port: portOf(t, plain.Listener.Addr()),
			HTTPHeaders: []v1.HTTPHeader{{Name: "X-Mine", Value: "1"}, {Name: "Host", Value: "web.example"}}}}
	}
	health := func(service string) v1.ProbeHandler {
		return v1.ProbeHandler{GRPC: &v1.GRPCAction{Port: int32(l.Addr().(*net.TCPAddr).Port), Service: &service}}
	}
	https := get("/ok")
	https.HTTPGet.Scheme, https.HTTPGet.Port = v1.URISchemeHTTPS, portOf(t, secure.Listener.Addr())
	named := v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: intstr.FromString("web")}}
	c := &v1.Container{Name: "app", Ports: []v1.ContainerPort{{Name: "web", ContainerPort: portOf(t, plain.Listener.Addr()).IntVal}}}
	for _, test := range []struct {
		name   string
		action v1.ProbeHandler
		ok     bool
		text   string
	}{
		{"good", get("/ok"), true, ""},
		{"bad, its body not shown", get("/bad"), false, "HTTP probe failed with statuscode: 500"},
		{"redirected here", get("/near"), false, "statuscode: 500"},
		{"redirected elsewhere", get("/far"), true, "Probe terminated redirects"},
		{"slow", get("/slow"), false, "deadline exceeded"},
		{"secure, its certificate unchecked", https, true, ""},
		{"socket by name", named, true, ""},
		{"no listener", v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: portOf(t, nobody.Addr())}}, false, "refused"},
		{"server", health(""), true, "service healthy"},
		{"service that is down", health("down"), false, "NOT_SERVING"},
		{"service that there is not", health("none"), false, "unknown service"},
		{"no gRPC", v1.ProbeHandler{GRPC: &v1.GRPCAction{Port: portOf(t, nobody.Addr()).IntVal}}, false, "timeout: health rpc did not complete within 1s"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := &v1.Probe{ProbeHandler: test.action, TimeoutSeconds: 1}
			got, err := probe.Prober{}.Ask(t.Context(), &v1.Pod{}, &v1.PodStatus{PodIP: "127.0.0.1"}, c, "id", p)
			if err != nil || got.OK != test.ok || !strings.Contains(got.Text, test.text) || strings.Contains(got.Text, "secret") {
				t.Errorf("got %+v, %v; want %v, %q", got, err, test.ok, test.text)
			}
		})
	}
}
