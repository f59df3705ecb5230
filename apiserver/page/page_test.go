package page

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/html"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	fake "k8s.io/cri-api/pkg/apis/testing"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/crisp-cri/crisp/apiserver/startup"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/pulls"
	"github.com/crisp-cri/crisp/internal/timeline"
)

// hostile is text that attacks the page.
const hostile = "<script>alert(1)</script>\"' onload=alert(1) \x1b]0;title\x07\x1b[31m \u202egnp.exe {{.}} &lt;b&gt; javascript:alert(1)"

// A fakeRuntime has one image and given statistics.
type fakeRuntime struct {
	*fake.FakeRuntimeService
	*fake.FakeImageService
	err   error
	stats []*cri.PodSandboxStats
	asked atomic.Int64
}

func (f *fakeRuntime) Runtime() (internalapi.RuntimeService, internalapi.ImageManagerService, error) {
	return f, f, f.err
}

func (f *fakeRuntime) ListPodSandboxStats(context.Context, *cri.PodSandboxStatsFilter) ([]*cri.PodSandboxStats, error) {
	f.asked.Add(1)
	return f.stats, nil
}

func (f *fakeRuntime) ListImages(context.Context, *cri.ImageFilter) ([]*cri.Image, error) {
	return []*cri.Image{{Id: "sha256:" + hostile, RepoTags: []string{hostile + ":latest"}, Size: 5e6}}, nil
}

func (f *fakeRuntime) ListContainers(context.Context, *cri.ContainerFilter) ([]*cri.Container, error) {
	return nil, nil
}

func (f *fakeRuntime) Close(context.Context) error { return nil }

type fakePulls []pulls.Pull

func (f fakePulls) List(context.Context) []pulls.Pull { return f }

// hostilePod has hostile text in every text field.
func hostilePod() *v1.Pod {
	now := metav1.Now()
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web", UID: "u1", CreationTimestamp: now,
			Annotations: map[string]string{"crisp.io/file": hostile, "x": hostile}, Labels: map[string]string{"l": hostile},
		},
		Spec: v1.PodSpec{Containers: []v1.Container{{Name: "app", Image: hostile, Env: []v1.EnvVar{{Name: "E", Value: hostile}}}}},
		Status: v1.PodStatus{
			Phase: v1.PodPending, Reason: hostile, Message: hostile,
			Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionFalse, Reason: hostile, Message: hostile}},
			ContainerStatuses: []v1.ContainerStatus{{
				Name: "app", ContainerID: "crisp://1", State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: hostile}},
				LastTerminationState: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: 1, Reason: hostile, Message: hostile}},
			}},
		},
	}
}

// fakeAPI imitates the agent's API with one pod.
func fakeAPI(pod *v1.Pod) *http.ServeMux {
	mux := http.NewServeMux()
	answer := func(path string, v any) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) { json.NewEncoder(w).Encode(v) })
	}
	begin := time.Now().Add(-time.Second)
	report := startup.Report{
		Pod: timeline.Pod{UID: string(pod.UID), Namespace: pod.Namespace, Name: pod.Name}, Seen: begin,
		Stages: []timeline.Stage{{Name: "sandbox", Begin: begin, End: begin.Add(time.Second / 2)}, {Name: "pull", Container: "app", Begin: begin.Add(time.Second / 2), Detail: hostile, Err: hostile}},
	}
	answer("/pods", v1.PodList{Items: []v1.Pod{*pod}})
	answer("/api/v1/namespaces/default/pods/web", pod)
	answer("/api/v1/nodes", v1.NodeList{Items: []v1.Node{{ObjectMeta: metav1.ObjectMeta{Name: hostile}, Status: v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionFalse, Message: hostile}}}}}})
	answer("/api/v1/events", v1.EventList{Items: []v1.Event{{
		InvolvedObject: v1.ObjectReference{UID: pod.UID, FieldPath: "spec.containers{" + hostile + "}"}, Type: "Warning", Reason: hostile, Message: hostile, Count: 2,
	}}})
	answer("/crisp/v1/startup", map[string]any{"items": []startup.Report{report}})
	answer("/crisp/v1/namespaces/default/pods/web/startup", report)
	answer("/stats/summary", map[string]any{"node": map[string]any{"memory": map[string]any{"workingSetBytes": 3 << 30}, "fs": map[string]any{"capacityBytes": 100e9, "usedBytes": 20e9, "availableBytes": 75e9}}})
	answer("/crisp/v1/sources", []map[string]any{{"name": "file", "files": []map[string]any{{"path": hostile, "error": "web.yaml:3: broken " + hostile}}}})
	mux.HandleFunc("GET /api/v1/namespaces/default/pods/web/log", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("container") != "app" {
			w.WriteHeader(http.StatusNotFound)
			json.NewEncoder(w).Encode(metav1.Status{Message: "there is no container " + hostile})
			return
		}
		io.WriteString(w, hostile+"\n"+r.URL.RawQuery)
		http.NewResponseController(w).Flush()
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		json.NewEncoder(w).Encode(metav1.Status{Message: "there is no " + r.URL.Path})
	})
	return mux
}

const address = "127.0.0.1:10350"

func newServer(t *testing.T, api http.Handler, runtime *fakeRuntime) *Server {
	p := fakePulls{{Image: hostile, From: hostile, For: []string{"default/web"}, Total: 100, Bytes: 43, AllKnown: true, Layers: []pulls.Layer{{Digest: "sha256:" + hostile, Size: 100, Bytes: 43, State: pulls.Downloading}}}}
	return New(t.Context(), Options{API: api, Runtime: runtime, Pulls: p, Address: address, Key: "secret", Log: slog.New(slog.DiscardHandler)})
}

func newFake() *fakeRuntime {
	return &fakeRuntime{FakeRuntimeService: fake.NewFakeRuntimeService(), FakeImageService: fake.NewFakeImageService()}
}

// get sends a request with a session and these headers.
func get(s *Server, path string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "http://"+address+path, nil)
	r.AddCookie(&http.Cookie{Name: cookieName, Value: s.session(time.Now().Add(time.Hour))})
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

// fetch sends a request over a connection, which a recorder does not have.
func fetch(t *testing.T, s *Server, path string) (*http.Response, string) {
	t.Helper()
	server := httptest.NewServer(s)
	defer server.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.AddCookie(&http.Cookie{Name: cookieName, Value: s.session(time.Now().Add(time.Hour))})
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

// The list says what is wrong with manifests and the node, and what the node uses.
func TestListOfPods(t *testing.T) {
	text := get(newServer(t, fakeAPI(hostilePod()), newFake()), "/page/").Body.String()
	for _, want := range []string{`<p class="problem">Broken manifest: web.yaml:3: broken`, "1, 1 not ready", "0 B of 0 B", "20 GB used, 75 GB free"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if use := disks(stats.NodeStats{Fs: &stats.FsStats{CapacityBytes: new(uint64(100)), UsedBytes: new(uint64(20)), AvailableBytes: new(uint64(60))}}); use[0].Percent != 25 {
		t.Errorf("%d %% of the disk are in use", use[0].Percent)
	}
}

// pages has the paths of all pages with content.
var pages = []string{
	"/page/", "/page/images", "/page/pods/default/web", "/page/pods/default/web?live", "/page/pods/default/web/log/app",
	"/page/pods/default/web/shell/app?command=" + url.QueryEscape(hostile), "/page/pods/default/none", "/page/pods/default/web/log/" + url.PathEscape(hostile),
}

// Hostile text stays text on each page: it adds no elements or attributes, and no control
// characters.
func TestHostileText(t *testing.T) {
	s := newServer(t, fakeAPI(hostilePod()), newFake())
	for _, path := range pages {
		w := get(s, path)
		body := w.Body.String()
		if i := strings.IndexFunc(body, func(r rune) bool { return r < 0x20 && r != '\n' && r != '\t' || shown(r) != r }); i >= 0 {
			t.Errorf("%s has the character %q", path, body[i:i+3])
		}
		doc, err := html.Parse(strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		scripts := 0
		for n := range doc.Descendants() {
			if n.Type == html.ElementNode && n.Data == "script" {
				scripts++
			}
			if n.Data == "b" && n.FirstChild != nil && n.FirstChild.Data == "&gt;" {
				t.Errorf("%s: escaped text was escaped not again", path)
			}
			for _, a := range n.Attr {
				if a.Key == "data-url" {
					u, err := url.Parse(a.Val)
					if err != nil || len(u.Query()) > 1 || u.Fragment != "" {
						t.Errorf("%s asks for %q: %v", path, a.Val, err)
					}
				}
				if strings.HasPrefix(a.Key, "on") || a.Key == "style" || (a.Key == "href" || a.Key == "src" || a.Key == "action" || a.Key == "data-url") && !strings.HasPrefix(a.Val, "/page/") && !strings.HasPrefix(a.Val, "?") && a.Val != "data:," {
					t.Errorf("%s has <%s %s=%q>", path, n.Data, a.Key, a.Val)
				}
			}
		}
		if scripts != 1 {
			t.Errorf("%s has %d scripts:\n%s", path, scripts, body)
		}
		if !strings.Contains(body, "&lt;script&gt;alert(1)") && !slices.Contains([]string{"/page/pods/default/web/log/app", "/page/pods/default/none"}, path) {
			t.Errorf("%s does not show the text:\n%s", path, body)
		}
	}
}

func TestCodes(t *testing.T) {
	s := newServer(t, fakeAPI(hostilePod()), newFake())
	for path, want := range map[string]int{
		"/page/": 200, "/page/images": 200, "/page/pods/default/web": 200, "/page/static/page.js": 200, "/page/static/page.css": 200,
		"/page/pods/default/none": 404, "/page/none": 404, "/page/pods/default/web/lines/none": 404,
		"/page/pods/default/web/exec/app?command=sh": 400, "/page/static/": 200,
	} {
		w := get(s, path)
		if w.Code != want {
			t.Errorf("%s: %d, want %d\n%s", path, w.Code, want, w.Body)
		}
		for name, value := range map[string]string{"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Referrer-Policy": "same-origin"} {
			if got := w.Header().Get(name); got != value {
				t.Errorf("%s: %s is %q, want %q", path, name, got, value)
			}
		}
	}
	// A new server, since the first one may still be taking a sample from its runtime.
	runtime := newFake()
	runtime.err = fault.Unavailable.Errorf("the runtime has not answered yet")
	s = newServer(t, fakeAPI(hostilePod()), runtime)
	if w := get(s, "/page/images"); w.Code != 503 || !strings.Contains(w.Body.String(), "has not answered yet") {
		t.Errorf("without a runtime: %d %s", w.Code, w.Body)
	}
	if w := get(s, "/page/"); w.Code != 200 {
		t.Errorf("pods, without a runtime: %d %s", w.Code, w.Body)
	}
	upgrade := []string{"Upgrade", "websocket", "Connection", "Upgrade", "Origin", "http://" + address}
	for path, want := range map[string]int{
		"/page/pods/default/web/exec/app": 400, "/page/pods/default/web/exec/app?command=" + strings.Repeat("x", maxCommand+1): 400,
		"/page/pods/default/web/exec/app?command=sh": 404, // it is not running
	} {
		if w := get(s, path, upgrade...); w.Code != want {
			t.Errorf("%.80s: %d, want %d", path, w.Code, want)
		}
	}
}

// A log is text without control characters. The request has the parameters that the page asked for.
func TestLines(t *testing.T) {
	s := newServer(t, fakeAPI(hostilePod()), newFake())
	resp, body := fetch(t, s, "/page/pods/default/web/lines/app?timestamps=1&follow=false&tailLines=9999999")
	if got := resp.Header.Get("Content-Type"); !strings.HasPrefix(got, "text/plain") {
		t.Errorf("the type is %s", got)
	}
	for _, want := range []string{"<script>alert(1)</script>", "␛]0;title␇␛[31m �gnp", "follow=true", "previous=false", "tailLines=1000", "timestamps=true"} {
		if !strings.Contains(body, want) {
			t.Errorf("no %q in\n%q", want, body)
		}
	}
	if strings.ContainsAny(body, "\x1b\x07\u202e") {
		t.Errorf("something steers in\n%q", body)
	}
}

// At most as many logs are read at a time as there are tokens.
func TestLogsAreBounded(t *testing.T) {
	s := newServer(t, fakeAPI(hostilePod()), newFake())
	var all []func()
	for range maxLogs {
		release, err := take(s.logs, "logs")
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, release)
	}
	if resp, body := fetch(t, s, "/page/pods/default/web/lines/app"); resp.StatusCode != 503 {
		t.Errorf("one more than there are: %d %s", resp.StatusCode, body)
	}
	all[0]()
	for range 2 { // the first one must have returned its token
		if resp, body := fetch(t, s, "/page/pods/default/web/lines/app"); resp.StatusCode != 200 {
			t.Errorf("after one has ended: %d %s", resp.StatusCode, body)
		}
	}
}

func TestVisible(t *testing.T) {
	const in = "a\tb\nc\rd\x1b[0m\x7f\x9b\u009b\u202e\u200bé\u200d漢\xff\U000e0041"
	const want = "a\tb\nc␍d␛[0m␡����é\u200d漢��"
	if got := string(visible([]byte(in))); got != want {
		t.Errorf("shown as %q, want %q", got, want)
	}
	for size := 1; size < 5; size++ { // in pieces of size bytes
		var b strings.Builder
		c := cleaner{to: &b}
		for piece := range slices.Chunk([]byte(in), size) {
			if n, err := c.Write(piece); n != len(piece) || err != nil {
				t.Fatalf("wrote %d: %v", n, err)
			}
		}
		if b.String() != want {
			t.Errorf("in pieces of %d shown as %q, want %q", size, b.String(), want)
		}
	}
}

// A name in the URL cannot lead to another path of the API.
func TestPathsAreEscaped(t *testing.T) {
	var asked []string
	s := newServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.EscapedPath())
		w.WriteHeader(http.StatusNotFound)
	}), newFake())
	get(s, "/page/pods/default/a%2F..%2Fsecrets%3Fx")
	if want := "/api/v1/namespaces/default/pods/a%2F..%2Fsecrets%3Fx"; fmt.Sprint(asked) != fmt.Sprint([]string{want}) {
		t.Errorf("asked %v, want %s", asked, want)
	}
}
