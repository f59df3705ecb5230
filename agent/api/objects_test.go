package api

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/crisp-cri/crisp/agent/desired"
	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/source"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// An agent that has just begun does not say that there is nothing before it has read
// the manifests of its machine; what cannot be read is not waited for for ever.
func TestAnswersWhenRead(t *testing.T) {
	const web, list = "/api/v1/namespaces/default/pods/web", "/api/v1/pods"
	pods := func(t *testing.T, from string) source.Update {
		objects, _, err := manifest.Read("web.yaml", []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: a, image: i}]}\n"), manifest.Options{NodeName: "n1", Source: from})
		if err != nil {
			t.Fatal(err)
		}
		return source.Update{Source: from, Files: []source.File{{Path: "web.yaml", Objects: objects}}}
	}
	for name, test := range map[string]struct {
		path     string
		reports  bool // the manifests are read, after a second
		code     int
		contains string
	}{
		"one":              {web, true, http.StatusOK, `"name":"web"`},
		"log":              {web + "/log", true, http.StatusNotFound, "pod default/web has no container a yet"},
		"all":              {list, true, http.StatusOK, `"name":"web"`},
		"cannot be read":   {web, false, http.StatusNotFound, "there is no pod default/web"},
		"what is always":   {"/api/v1/namespaces", false, http.StatusOK, `"name":"default"`},
		"is none of these": {"/api/v1/namespaces/default/pods/db", true, http.StatusNotFound, "there is no pod default/db"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				wanted := desired.New([]string{manifest.SourceFile, manifest.SourceHTTP})
				s := New(Options{
					Wanted: wanted, Log: slog.New(slog.DiscardHandler),
					Status:   func(types.UID) *v1.PodStatus { return nil },
					Accepted: func() []*v1.Pod { return nil },
				})
				if test.reports {
					go func() {
						time.Sleep(time.Second)
						wanted.Update(pods(t, manifest.SourceFile))
					}()
				}
				w := httptest.NewRecorder()
				s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, test.path, nil))
				if w.Code != test.code || !strings.Contains(w.Body.String(), test.contains) {
					t.Errorf("%d: %s", w.Code, w.Body)
				}
				synctest.Wait()
			})
		})
	}
}
