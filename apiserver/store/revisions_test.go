package store_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/apiserver/store"
)

// The store keeps revisions like Kubernetes: a template that is used again gets a new number, the
// oldest revisions are dropped, and an edit outside of the template adds none.
func TestRevisions(t *testing.T) {
	s := open(t, t.TempDir())
	put := func(image string, replicas, limit int) {
		t.Helper()
		text := fmt.Sprintf(`{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "annotations": {"kubernetes.io/change-cause": "to %[1]s"}},
			"spec": {"replicas": %[2]d, "revisionHistoryLimit": %[3]d, "selector": {"matchLabels": {"a": "b"}},
			"template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i:%[1]s"}]}}}}`, image, replicas, limit)
		if _, _, _, err := s.Put([]byte(text), store.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	check := func(want string) {
		t.Helper()
		list, err := s.Revisions("deployment default/web")
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range list {
			got = append(got, fmt.Sprintf("%d %s", r.Number, r.Cause))
		}
		if text := strings.Join(got, ", "); text != want {
			t.Errorf("got %s, want %s", text, want)
		}
	}
	put("1", 1, 2)
	check("1 to 1")
	put("1", 3, 2)
	check("1 to 1")
	put("2", 3, 2)
	put("1", 3, 2)
	check("2 to 2, 3 to 1")
	put("3", 3, 2)
	put("4", 3, 2)
	check("3 to 1, 4 to 3, 5 to 4")
	put("5", 3, 0)
	check("6 to 5")
	if _, err := s.Revisions("deployment default/none"); err == nil {
		t.Error("a workload that is not there has revisions")
	}
}
