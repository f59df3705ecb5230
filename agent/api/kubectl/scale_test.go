package kubectl

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/crisp-cri/crisp/agent/api"
	"github.com/crisp-cri/crisp/agent/desired"
	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/store"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
)

// What another client changes while the body of a scale is on its way stays, and is a conflict
// for a client that names the version before.
func TestScaleKeepsChangesMeanwhile(t *testing.T) {
	const path, mergePatch = "/apis/apps/v1/namespaces/default/deployments/web/scale", "application/merge-patch+json"
	for name, test := range map[string]struct {
		method, kind string
		versioned    bool
		code         int
		replicas     int32
	}{
		"put":                {http.MethodPut, "application/json", false, http.StatusOK, 3},
		"patch":              {http.MethodPatch, mergePatch, false, http.StatusOK, 3},
		"put of a version":   {http.MethodPut, "application/json", true, http.StatusConflict, 1},
		"patch of a version": {http.MethodPatch, mergePatch, true, http.StatusConflict, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				objects, err := store.Open(t.TempDir(), "n1", none{}, slog.New(slog.DiscardHandler))
				if err != nil {
					t.Fatal(err)
				}
				wanted := desired.New([]string{manifest.SourceAPI})
				put := func(image string) {
					text := `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web"},"spec":{"replicas":1,"selector":{"matchLabels":{"a":"b"}},` +
						`"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"a","image":"` + image + `"}]}}}}`
					if _, _, _, err := objects.Put([]byte(text), store.PutOptions{}); err != nil {
						t.Fatal(err)
					}
					wanted.Update(objects.Update())
				}
				put("i:1")
				h := New(api.New(api.Options{
					Wanted: wanted, Store: objects, Log: slog.New(slog.DiscardHandler),
					Statuses: known{}, Files: known{},
				}), objects, "")
				ask := func(method string, body io.Reader) *httptest.ResponseRecorder {
					r := httptest.NewRequest(method, path, body)
					r.Header.Set("Content-Type", test.kind)
					w := httptest.NewRecorder()
					h.ServeHTTP(w, r)
					return w
				}
				var scale autoscalingv1.Scale
				if w := ask(http.MethodGet, nil); json.Unmarshal(w.Body.Bytes(), &scale) != nil || scale.ResourceVersion == "" {
					t.Fatalf("%d: %s", w.Code, w.Body)
				}
				scale.Spec.Replicas = 3
				if !test.versioned {
					scale.ResourceVersion = ""
				}
				text, err := json.Marshal(map[string]any{"metadata": scale.ObjectMeta, "spec": scale.Spec})
				if err != nil {
					t.Fatal(err)
				}
				w := ask(test.method, &slow{func() { put("i:2") }, strings.NewReader(string(text))})
				if w.Code != test.code {
					t.Errorf("%d: %s", w.Code, w.Body)
				}
				var got appsv1.Deployment
				given, err := objects.Given("deployment default/web")
				if err != nil || json.Unmarshal(given, &got) != nil {
					t.Fatalf("%s, %v", given, err)
				}
				if image := got.Spec.Template.Spec.Containers[0].Image; image != "i:2" || *got.Spec.Replicas != test.replicas {
					t.Errorf("%d replicas of %s, want %d of i:2", *got.Spec.Replicas, image, test.replicas)
				}
			})
		})
	}
}

// A slow body does something before it is read.
type slow struct {
	first func()
	rest  io.Reader
}

func (s *slow) Read(p []byte) (int, error) {
	if s.first != nil {
		s.first()
		s.first = nil
	}
	return s.rest.Read(p)
}
