package api

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/source"
	"github.com/crisp-cri/crisp/apiserver/workload"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// podsWithStatus returns a server of n pods, and their statuses by UID.
func podsWithStatus(b *testing.B, n int) (*Server, map[types.UID]*v1.PodStatus) {
	b.Helper()
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, "---\napiVersion: v1\nkind: Pod\nmetadata: {name: web-%d, labels: {app: web}}\nspec: {containers: [{name: a, image: i}, {name: b, image: i}]}\n", i)
	}
	objects, _, err := manifest.Read("pods.yaml", []byte(text.String()), manifest.Options{NodeName: "n1", Source: manifest.SourceFile})
	if err != nil {
		b.Fatal(err)
	}
	wanted := source.NewManager([]string{manifest.SourceFile}, workload.Expand)
	wanted.Update(source.Update{Source: manifest.SourceFile, Files: []source.File{{Path: "pods.yaml", Objects: objects}}})
	known := statuses{}
	for _, o := range objects {
		known[o.GetUID()] = statusOf(0)
	}
	s := serverOf(wanted)
	s.o.Statuses = known
	return s, known
}

func statusOf(restarts int32) *v1.PodStatus {
	return &v1.PodStatus{
		Phase: v1.PodRunning, PodIP: "10.88.0.7",
		Conditions:        []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}},
		ContainerStatuses: []v1.ContainerStatus{{Name: "a", Ready: true, RestartCount: restarts}, {Name: "b", Ready: true}},
	}
}

// BenchmarkWatch changes one pod of a hundred, with ten watchers.
func BenchmarkWatch(b *testing.B) {
	s, statuses := podsWithStatus(b, 100)
	uid := s.o.Wanted.Pods()[0].UID
	_, first := s.cache.List("Pod")
	var at [10]uint64
	for i := range at {
		at[i] = first
	}
	b.ReportAllocs()
	var restarts int32
	for b.Loop() {
		restarts++
		statuses[uid] = statusOf(restarts)
		s.Poke()
		for i := range at {
			changes, now, err := s.cache.Since("Pod", at[i])
			if err != nil || len(changes) != 1 {
				b.Fatalf("%d changes, %v", len(changes), err)
			}
			at[i] = now
		}
	}
}

// BenchmarkGet reads one pod of a hundred.
func BenchmarkGet(b *testing.B) {
	s, _ := podsWithStatus(b, 100)
	b.ReportAllocs()
	for b.Loop() {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/api/v1/namespaces/default/pods/web-7", nil))
		if w.Code != http.StatusOK {
			b.Fatalf("%d: %s", w.Code, w.Body)
		}
	}
}
