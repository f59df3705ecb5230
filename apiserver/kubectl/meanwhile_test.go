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

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/source"
	"github.com/crisp-cri/crisp/apiserver/api"
	"github.com/crisp-cri/crisp/apiserver/store"
	"github.com/crisp-cri/crisp/apiserver/workload"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apimachinery/pkg/types"
)

const mergePatch, strategicPatch = string(types.MergePatchType), string(types.StrategicMergePatchType)

// An agentAPI is an agent's API and its store, without an agent.
type agentAPI struct {
	t       *testing.T
	objects *store.Store
	wanted  *source.Manager
	*Handler
}

func newAPI(t *testing.T, debugged *added) *agentAPI {
	t.Helper()
	objects, err := store.Open(t.TempDir(), "n1", none{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	wanted := source.NewManager([]string{manifest.SourceAPI}, workload.Expand)
	s := api.New(api.Options{
		Wanted: wanted, Store: objects, Log: slog.New(slog.DiscardHandler),
		Statuses: known{}, Files: known{}, Ephemeral: debugged,
	})
	return &agentAPI{t, objects, wanted, New(s, objects, "")}
}

// put stores an object.
func (a *agentAPI) put(text string) {
	a.t.Helper()
	if _, _, _, err := a.objects.Put([]byte(text), store.PutOptions{}); err != nil {
		a.t.Fatal(err)
	}
	a.wanted.Update(a.objects.Update())
}

// given returns an object as it was applied last.
func (a *agentAPI) given(key string) string {
	a.t.Helper()
	text, err := a.objects.Given(key)
	if err != nil {
		a.t.Fatal(err)
	}
	return string(text)
}

// ask sends a request whose body arrives after meanwhile has run.
func (a *agentAPI) ask(method, path, kind, body string, meanwhile func()) *httptest.ResponseRecorder {
	late := reads(func([]byte) (int, error) { meanwhile(); return 0, io.EOF })
	r := httptest.NewRequest(method, path, io.MultiReader(late, strings.NewReader(body)))
	r.Header.Set("Content-Type", kind)
	w := httptest.NewRecorder()
	a.ServeHTTP(w, r)
	return w
}

type reads func([]byte) (int, error)

func (r reads) Read(p []byte) (int, error) { return r(p) }

// A change by another client while the body of a scale request is in transit is kept. It is a
// conflict if the request names the earlier version.
func TestScaleKeepsChangesMeanwhile(t *testing.T) {
	const path = "/apis/apps/v1/namespaces/default/deployments/web/scale"
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
				a := newAPI(t, nil)
				put := func(image string) {
					a.put(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web"},"spec":{"replicas":1,"selector":{"matchLabels":{"a":"b"}},` +
						`"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"a","image":"` + image + `"}]}}}}`)
				}
				put("i:1")
				var scale autoscalingv1.Scale
				if w := a.ask(http.MethodGet, path, "", "", func() {}); json.Unmarshal(w.Body.Bytes(), &scale) != nil || scale.ResourceVersion == "" {
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
				if w := a.ask(test.method, path, test.kind, string(text), func() { put("i:2") }); w.Code != test.code {
					t.Errorf("%d: %s", w.Code, w.Body)
				}
				var got appsv1.Deployment
				if err := json.Unmarshal([]byte(a.given("deployment default/web")), &got); err != nil {
					t.Fatal(err)
				}
				if image := got.Spec.Template.Spec.Containers[0].Image; image != "i:2" || *got.Spec.Replicas != test.replicas {
					t.Errorf("%d replicas of %s, want %d of i:2", *got.Spec.Replicas, image, test.replicas)
				}
			})
		})
	}
}

// A change by another client while the body of a resize request is in transit is kept, including
// other containers' resources.
func TestResizeKeepsChangesMeanwhile(t *testing.T) {
	for method, kind := range map[string]string{http.MethodPut: "application/json", http.MethodPatch: strategicPatch} {
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAPI(t, nil)
				put := func(labels, resources string) {
					a.put(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web","labels":{` + labels + `}},` +
						`"spec":{"containers":[{"name":"a","image":"i"},{"name":"b","image":"i","resources":{` + resources + `}}]}}`)
				}
				put(`"first":"1"`, `"limits":{"memory":"1Mi"}`)
				w := a.ask(method, "/api/v1/namespaces/default/pods/web/resize", kind, `{"spec":{"containers":[{"name":"a","resources":{"limits":{"cpu":"1"}}}]}}`,
					func() { put(`"first":"1","second":"2"`, `"limits":{"memory":"2Mi"}`) })
				if w.Code != http.StatusOK {
					t.Errorf("%d: %s", w.Code, w.Body)
				}
				given := a.given("pod default/web")
				for _, want := range []string{`"second":"2"`, `"cpu":"1"`, `"memory":"2Mi"`} {
					if !strings.Contains(given, want) {
						t.Errorf("%s is lost: %s", want, given)
					}
				}
			})
		})
	}
}
