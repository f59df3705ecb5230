package api

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/source"
	"github.com/crisp-cri/crisp/apiserver/store"
	"github.com/crisp-cri/crisp/apiserver/workload"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
)

// An agent that has just started does not report an empty list before it has read its manifests. It
// does not wait for unreadable ones forever.
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
		reports  bool // the source reports its manifests, after a second
		code     int
		contains string
	}{
		"one":                 {web, true, http.StatusOK, `"name":"web"`},
		"log":                 {web + "/log", true, http.StatusNotFound, "pod default/web has no container a yet"},
		"log of no container": {web + "/log?container=b", true, http.StatusNotFound, `pod default/web has no container b, but a"`},
		"all":                 {list, true, http.StatusOK, `"name":"web"`},
		"cannot be read":      {web, false, http.StatusNotFound, "there is no pod default/web"},
		"what is always":      {"/api/v1/namespaces", false, http.StatusOK, `"name":"default"`},
		"is none of these":    {"/api/v1/namespaces/default/pods/db", true, http.StatusNotFound, "there is no pod default/db"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				wanted := source.NewManager([]string{manifest.SourceFile, manifest.SourceHTTP}, workload.Expand)
				s := New(Options{
					Wanted: wanted, Log: slog.New(slog.DiscardHandler),
					Statuses: statuses{}, Files: accepted(nil),
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

// Field selectors may use the fields that Kubernetes has for the kind, and no others: an empty list
// would be taken for an answer.
func TestFieldSelectors(t *testing.T) {
	pod := &v1.Pod{Spec: v1.PodSpec{NodeName: "n", RestartPolicy: v1.RestartPolicyNever, HostNetwork: true}, Status: v1.PodStatus{Phase: v1.PodRunning, PodIP: "10.1.2.3"}}
	event := &v1.Event{Source: v1.EventSource{Component: "kubelet"}, InvolvedObject: v1.ObjectReference{Name: "web", ResourceVersion: "7"}}
	secret := &v1.Secret{Type: v1.SecretTypeTLS}
	node := &v1.Node{}
	job := &batchv1.Job{Status: batchv1.JobStatus{Succeeded: 2}}
	for _, test := range []struct {
		object    manifest.Object
		selector  string
		takes, ok bool
	}{
		{pod, "spec.restartPolicy=Never,status.phase!=Failed,spec.nodeName=n", true, true},
		{pod, "status.podIP=10.1.2.3,spec.hostNetwork=true", true, true},
		{pod, "spec.hostNetwork=false", false, true},
		{pod, "type=x", false, false},
		{pod, "spec.unschedulable=false", false, false},
		{event, "source=kubelet,involvedObject.resourceVersion=7", true, true},
		{event, "reportingComponent=x", false, true},
		{event, "status.phase=Running", false, false},
		{secret, "type=kubernetes.io/tls", true, true},
		{node, "spec.unschedulable=false", true, true},
		{job, "status.successful=2", true, true},
		{job, "spec.nodeName=n", false, false},
	} {
		kind, _ := KindOf(reflect.TypeOf(test.object).Elem().Name())
		sel, err := selectionOf(httptest.NewRequest(http.MethodGet, "/?fieldSelector="+url.QueryEscape(test.selector), nil), kind)
		if takes := err == nil && sel.takes(test.object); takes != test.takes || (err == nil) != test.ok {
			t.Errorf("%s %s: %v, %v", kind.Name, test.selector, takes, err)
		}
	}
}

// A client that writes what it has read gets a conflict if another client wrote in between, even
// before the agent's loop has processed that change. Of two clients that read the same version only
// one can write.
func TestPutOfStale(t *testing.T) {
	objects, err := store.Open(t.TempDir(), "n1", none{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	put := func(value string) {
		t.Helper()
		text := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"data":{"v":"` + value + `"}}`
		if _, _, _, err := objects.Put([]byte(text), store.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	put("1")
	wanted := source.NewManager([]string{manifest.SourceAPI}, workload.Expand)
	wanted.Update(objects.Update())
	s := serverOf(wanted)
	s.o.Store = objects
	const path = "/api/v1/namespaces/default/configmaps/c"
	read := httptest.NewRecorder()
	s.ServeHTTP(read, httptest.NewRequest(http.MethodGet, path, nil))
	var c v1.ConfigMap
	if err := json.Unmarshal(read.Body.Bytes(), &c); err != nil {
		t.Fatal(err)
	}
	c.Data["v"] = "mine"
	text, err := json.Marshal(&c)
	if err != nil {
		t.Fatal(err)
	}
	write := func() int {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(http.MethodPut, path+"?dryRun=All", strings.NewReader(string(text))))
		return w.Code
	}
	if code := write(); code != http.StatusOK {
		t.Errorf("what was read just now: %d", code)
	}
	put("2")
	if code := write(); code != http.StatusConflict {
		t.Errorf("before the loop has it: %d", code)
	}
	wanted.Update(objects.Update())
	if code := write(); code != http.StatusConflict {
		t.Errorf("after: %d", code)
	}
}

// A dryRun value that Kubernetes does not have is rejected, not ignored.
func TestPutWithUnknownDryRun(t *testing.T) {
	objects, err := store.Open(t.TempDir(), "n1", none{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	s := serverOf(source.NewManager([]string{manifest.SourceAPI}, workload.Expand))
	s.o.Store = objects
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/api/v1/namespaces/default/configmaps?dryRun=all",
		strings.NewReader(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"}}`)))
	if w.Code/100 != 4 || !strings.Contains(w.Body.String(), "dryRun") {
		t.Errorf("%d: %s", w.Code, w.Body)
	}
	if there := objects.Update().Files; len(there) > 0 {
		t.Errorf("it was done: %v", there)
	}
}
