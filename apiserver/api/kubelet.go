package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// routeKubelet routes the kubelet's endpoints.
func (s *Server) routeKubelet() {
	s.routeHealth(s.mux)
	s.handle("GET /pods", s.podList)
	s.handle("GET /pods/", s.podList)
	s.handle("GET /runningpods/", s.runningPods)
	s.handle("GET /runningpods", s.runningPods)
	s.handle("GET /configz", func(w http.ResponseWriter, r *http.Request) error {
		return Write(w, http.StatusOK, map[string]any{"kubeletconfig": s.o.Config.Show()})
	})
	s.handle("GET /stats/summary", s.summary)
	s.handle("GET /metrics", s.metrics)
	s.handle("GET /metrics/resource", s.resourceMetrics)
	s.handle("GET /metrics/probes", s.probeMetrics)
	s.handle("GET /metrics/cadvisor", s.cadvisorMetrics)
	// Endpoints that Kubernetes does not have.
	s.handle("GET /crisp/v1/sources", func(w http.ResponseWriter, r *http.Request) error {
		return Write(w, http.StatusOK, s.o.Wanted.Sources())
	})
}

// Health returns a handler that serves only the health checks, for a separate port.
func (s *Server) Health() http.Handler {
	mux := http.NewServeMux()
	s.routeHealth(mux)
	return mux
}

// runtimePatience is how long a health check waits for the runtime.
const runtimePatience = 5 * time.Second

// routeHealth routes the health checks. Liveness does not depend on the runtime; an agent is
// healthy only if it can run pods.
func (s *Server) routeHealth(mux *http.ServeMux) {
	checks := map[string]func(*http.Request) error{
		"ping":     func(*http.Request) error { return nil },
		"log":      func(*http.Request) error { return nil },
		"syncloop": func(*http.Request) error { return s.o.Loop.Health() },
		"pleg":     func(*http.Request) error { return s.o.Lists.Health() },
		"runtime": func(r *http.Request) error {
			runtime, _, err := s.Runtime()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(r.Context(), runtimePatience)
			defer cancel()
			_, err = runtime.Version(ctx, "")
			return criruntime.Fault(err)
		},
	}
	answer := func(w http.ResponseWriter, r *http.Request, names ...string) {
		for _, name := range names {
			if err := checks[name](r); err != nil {
				http.Error(w, fmt.Sprintf("%s: %v", name, err), http.StatusInternalServerError)
				return
			}
		}
		fmt.Fprintln(w, "ok")
	}
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, r *http.Request) { answer(w, r, "ping", "log", "syncloop") })
	for _, all := range []string{"/healthz", "/readyz"} {
		mux.HandleFunc("GET "+all, func(w http.ResponseWriter, r *http.Request) {
			answer(w, r, "ping", "log", "syncloop", "runtime", "pleg")
		})
	}
	for name := range checks {
		mux.HandleFunc("GET /healthz/"+name, func(w http.ResponseWriter, r *http.Request) { answer(w, r, name) })
	}
}

// podList answers the kubelet's /pods with the pods of this node and their statuses.
func (s *Server) podList(w http.ResponseWriter, r *http.Request) error {
	list := v1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: []v1.Pod{}}
	pods, _ := s.cache.List("Pod")
	for _, o := range pods {
		list.Items = append(list.Items, *o.(*v1.Pod))
	}
	return Write(w, http.StatusOK, list)
}

// runningPods answers with the pods that have a running container according to the runtime.
func (s *Server) runningPods(w http.ResponseWriter, r *http.Request) error {
	runtime, _, err := s.Runtime()
	if err != nil {
		return err
	}
	found, err := criruntime.List(r.Context(), runtime, status.Node{})
	if err != nil {
		return err
	}
	list := v1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: []v1.Pod{}}
	for _, f := range found {
		runs := slices.ContainsFunc(f.Pod.Status.ContainerStatuses, func(c v1.ContainerStatus) bool { return c.State.Running != nil })
		if runs {
			f.Pod.Status = v1.PodStatus{}
			list.Items = append(list.Items, *f.Pod)
		}
	}
	return Write(w, http.StatusOK, list)
}
