package main

import (
	"slices"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/internal/pulls"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// A watched pod is printed when it changes and, while it waits for an image, at each change of the
// pull's progress; not when it is ready or gone, and not for another pod's pull.
func TestPullWatch(t *testing.T) {
	var lines []string
	w := &pullWatch{pods: map[string]unstructured.Unstructured{}, shown: map[string]string{}}
	w.show = func(u unstructured.Unstructured, pulling string) error {
		lines = append(lines, u.GetName()+" "+pulling)
		return nil
	}
	pod := func(name string, ready bool) unstructured.Unstructured {
		return unstructured.Unstructured{Object: map[string]any{
			"metadata": map[string]any{"namespace": "default", "name": name},
			"spec":     map[string]any{"containers": []any{map[string]any{"name": "app"}}},
			"status":   map[string]any{"containerStatuses": []any{map[string]any{"name": "app", "ready": ready}}},
		}}
	}
	expect := func(what string, want ...string) {
		t.Helper()
		if !slices.Equal(lines, want) {
			t.Errorf("%s: %q, want %q", what, lines, want)
		}
		lines = nil
	}
	at := func(bytes int64) []pulls.Pull {
		return []pulls.Pull{{Image: "i", Begun: time.Unix(1, 0), For: []string{"default/web"}, Bytes: bytes, Total: 100, AllKnown: true}}
	}
	try := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	try(w.pulling(at(1)))
	expect("no pod is known")
	try(w.changed(pod("web", false)))
	try(w.changed(pod("other", false)))
	expect("two pods", "web ", "other ")
	try(w.pulling(at(10)))
	try(w.pulling(at(10)))
	try(w.pulling(at(43)))
	expect("a pull", "web Pulling 10 %, 0 B/s", "web Pulling 43 %, 0 B/s")
	try(w.pulling(nil))
	try(w.changed(pod("web", true)))
	try(w.pulling(at(44)))
	expect("it is ready", "web ")
}
