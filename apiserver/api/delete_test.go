package api

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/source"
	"github.com/crisp-cri/crisp/apiserver/store"
	"github.com/crisp-cri/crisp/apiserver/workload"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// none has no accepted pods.
type none struct{}

func (none) Pod(types.UID) *v1.Pod { return nil }

func (none) Last(podsync.Key) *v1.Pod { return nil }

// A list can be deleted: what the selectors match in its namespace, and nothing else.
func TestDeleteAll(t *testing.T) {
	objects, err := store.Open(t.TempDir(), "n1", none{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	wanted := source.NewManager([]string{manifest.SourceAPI, manifest.SourceFile}, workload.Expand)
	wanted.Update(configMaps(t, [2]string{"0-of-a-file", "one"}))
	for _, m := range []string{"{name: a, labels: {x: one}}", "{name: b, labels: {x: one}}", "{name: c}", "{name: d, namespace: other, labels: {x: one}}"} {
		if _, _, _, err := objects.Put([]byte("{apiVersion: v1, kind: ConfigMap, metadata: "+m+"}"), store.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	wanted.Update(objects.Update())
	s := New(Options{
		Wanted: wanted, Store: objects, Log: slog.New(slog.DiscardHandler),
		Statuses: statuses{}, Files: accepted(nil),
	})
	go func() { // the agent's loop
		for {
			select {
			case <-objects.Changed():
				wanted.Update(objects.Update())
				s.Poke()
			case <-t.Context().Done():
				return
			}
		}
	}()
	for _, step := range []struct {
		query, body string
		code        int
		left        string
	}{
		{"?labelSelector=x%3Done&dryRun=All", "", http.StatusOK, "0-of-a-file a b c d"},
		{"?labelSelector=x%3Done", `{"preconditions":{"uid":"other"}}`, http.StatusConflict, "0-of-a-file a b c d"},
		{"?fieldSelector=spec.nodeName%3Dx", "", http.StatusUnprocessableEntity, "0-of-a-file a b c d"},
		{"?labelSelector=x%3Done", `{"gracePeriodSeconds":0}`, http.StatusOK, "0-of-a-file c d"},
		{"?labelSelector=x%3Done", "", http.StatusOK, "0-of-a-file c d"},
		{"", "", http.StatusForbidden, "0-of-a-file d"},
	} {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(http.MethodDelete, "/api/v1/namespaces/default/configmaps"+step.query, strings.NewReader(step.body)))
		var left []string
		list, _ := s.cache.List("ConfigMap")
		for _, o := range list {
			left = append(left, o.GetName())
		}
		slices.Sort(left)
		if got := strings.Join(left, " "); w.Code != step.code || got != step.left {
			t.Errorf("DELETE %s %s: %d %s, left are %s, want %s", step.query, step.body, w.Code, w.Body, got, step.left)
		}
	}
}

// A rejected object is in no list, but "crisp sources" shows it. It can be deleted by name.
func TestDeleteRejected(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "configmap", "default", "c.json")
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(`{"uid":"u1","object":{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"data":7}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	objects, err := store.Open(dir, "n1", none{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	wanted := source.NewManager([]string{manifest.SourceAPI}, workload.Expand)
	wanted.Update(objects.Update())
	s := New(Options{
		Wanted: wanted, Store: objects, Log: slog.New(slog.DiscardHandler),
		Statuses: statuses{}, Files: accepted(nil),
	})
	remove := func(query string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(http.MethodDelete, "/api/v1/namespaces/default/configmaps/c"+query, nil))
		return w
	}
	for _, query := range []string{"?dryRun=all", "?dryRun=All&dryRun=", "?gracePeriodSeconds=soon"} {
		if w := remove(query); w.Code != http.StatusUnprocessableEntity && w.Code != http.StatusBadRequest {
			t.Errorf("%s: %d: %s", query, w.Code, w.Body)
		}
	}
	for _, query := range []string{"?dryRun=All", ""} {
		if w := remove(query); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"status":"Success"`) {
			t.Fatalf("%s: %d: %s", query, w.Code, w.Body)
		}
		_, err := os.Stat(file)
		if dry := query != ""; dry != (err == nil) {
			t.Errorf("%s: %v", query, err)
		}
	}
	if w := remove(""); w.Code != http.StatusNotFound {
		t.Errorf("again: %d: %s", w.Code, w.Body)
	}
}

// Who wants to keep the pods of a workload must not lose them. Other objects have none.
func TestDeleteOrphans(t *testing.T) {
	objects, err := store.Open(t.TempDir(), "n1", none{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		`{apiVersion: apps/v1, kind: Deployment, metadata: {name: d}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}`,
		`{apiVersion: v1, kind: ConfigMap, metadata: {name: d}}`,
	} {
		if _, _, _, err := objects.Put([]byte(text), store.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	wanted := source.NewManager([]string{manifest.SourceAPI}, workload.Expand)
	wanted.Update(objects.Update())
	s := New(Options{
		Wanted: wanted, Store: objects, Log: slog.New(slog.DiscardHandler),
		Statuses: statuses{}, Files: accepted(nil),
	})
	const deployment, configMap = "/apis/apps/v1/namespaces/default/deployments/d", "/api/v1/namespaces/default/configmaps/d"
	for _, test := range []struct {
		path, body string
		code       int
	}{
		{deployment, `{"propagationPolicy": "Orphan"}`, http.StatusUnprocessableEntity},
		{deployment, `{"orphanDependents": true}`, http.StatusUnprocessableEntity},
		{deployment + "?propagationPolicy=Orphan", "", http.StatusUnprocessableEntity},
		{deployment + "?dryRun=All", `{"propagationPolicy": "Background"}`, http.StatusOK},
		{configMap + "?dryRun=All", `{"propagationPolicy": "Orphan"}`, http.StatusOK},
	} {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(http.MethodDelete, test.path, strings.NewReader(test.body)))
		if w.Code != test.code {
			t.Fatalf("%s %s: %d: %s", test.path, test.body, w.Code, w.Body)
		}
	}
}
