package api

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/source"
	"github.com/crisp-cri/crisp/apiserver/workload"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// configMaps returns an update with these ConfigMaps, each "name label".
func configMaps(t *testing.T, maps ...[2]string) source.Update {
	t.Helper()
	var text string
	for _, m := range maps {
		text += fmt.Sprintf("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, labels: {tier: %s}}\n", m[0], m[1])
	}
	objects, _, err := manifest.Read("maps.yaml", []byte(text), manifest.Options{NodeName: "n1", Source: manifest.SourceFile})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects { // like an object of the API, whose UID does not change with its content
		o.SetUID(types.UID(o.GetName()))
	}
	return source.Update{Source: manifest.SourceFile, Files: []source.File{{Path: "maps.yaml", Objects: objects}}}
}

func serverOf(wanted *source.Manager) *Server {
	return New(Options{
		Wanted: wanted, Log: slog.New(slog.DiscardHandler),
		Statuses: statuses{}, Files: accepted(nil),
	})
}

type statuses map[types.UID]*v1.PodStatus

func (s statuses) Get(uid types.UID) *v1.PodStatus { return s[uid] }

func (s statuses) Last(pod *v1.Pod) *v1.PodStatus { return s[pod.UID] }

// accepted returns the pods with files; nil means none.
type accepted func() []*v1.Pod

func (a accepted) Accepted() []*v1.Pod {
	if a == nil {
		return nil
	}
	return a()
}

func (accepted) LogDir(*v1.Pod) string { return "" }

// EndingSince reports all ends as recorded.
func (accepted) EndingSince(types.UID) time.Time { return time.Unix(1_000_000_000, 0) }

// A client that waits for the end of an object must not get a DELETED event while the object
// exists: kubectl delete and kubectl wait rely on it.
func TestListsAtOnceReportNoDeletion(t *testing.T) {
	wanted := source.NewManager([]string{manifest.SourceFile}, workload.Expand)
	wanted.Update(configMaps(t, [2]string{"old", "a"}))
	s := serverOf(wanted)
	listed, going := make(chan struct{}), make(chan struct{})
	var busy atomic.Bool
	s.o.Files = accepted(func() []*v1.Pod { // during the first list of pods, after the wanted ones were listed
		if busy.CompareAndSwap(false, true) {
			close(listed)
			<-going
		}
		return nil
	})
	pods := func(names ...string) {
		var text string
		for _, name := range names {
			text += "---\napiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "}\nspec: {containers: [{name: a, image: i}]}\n"
		}
		objects, _, err := manifest.Read("pods.yaml", []byte(text), manifest.Options{NodeName: "n1", Source: manifest.SourceFile})
		if err != nil {
			t.Fatal(err)
		}
		wanted.Update(source.Update{Source: manifest.SourceFile, Files: []source.File{{Path: "pods.yaml", Objects: objects}}})
	}
	pods("first")
	var slow, fast sync.WaitGroup
	_, before := s.cache.List("ConfigMap")
	slow.Go(func() { s.cache.List("Pod") })
	<-listed
	pods("first", "second")
	fast.Go(func() { s.cache.List("Pod") })
	done := make(chan struct{})
	go func() { fast.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(200 * time.Millisecond): // blocked until the first list ends
	}
	close(going)
	slow.Wait()
	fast.Wait()
	changes, _, err := s.cache.Since("Pod", before)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range changes {
		if c.Deleted {
			t.Errorf("pod %s is sent as deleted, and it is there", c.Object.GetName())
		}
		names = append(names, c.Object.GetName())
	}
	if slices.Sort(names); !slices.Equal(names, []string{"first", "second"}) {
		t.Errorf("sent %v, want first and second", names)
	}
}

// Informers identify objects by name. The end of a replaced object is sent before its successor,
// which would otherwise be taken for deleted.
func TestWatchOfReplaced(t *testing.T) {
	wanted := source.NewManager([]string{manifest.SourceFile}, workload.Expand)
	s := serverOf(wanted)
	_, seq := s.cache.List("ConfigMap")
	for round, uid := range []types.UID{"1", "2", "3"} {
		u := configMaps(t, [2]string{"web", "a"})
		u.Files[0].Objects[0].SetUID(uid)
		wanted.Update(u)
		s.Poke()
		changes, now, err := s.cache.Since("ConfigMap", seq)
		if err != nil {
			t.Fatal(err)
		}
		seq = now
		var got []string
		for _, c := range changes {
			got = append(got, fmt.Sprint(c.Object.GetUID(), " ", c.Deleted))
		}
		want := []string{fmt.Sprint(uid, " ", false)}
		if round > 0 {
			want = []string{fmt.Sprint(round, true), want[0]}
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// While a pod replaces another of the same name, only the wanted one is listed. Statistics have
// both.
func TestReplacedPodIsListedOnce(t *testing.T) {
	wanted := source.NewManager([]string{manifest.SourceFile}, workload.Expand)
	read := func(image string) []manifest.Object {
		objects, _, err := manifest.Read("web.yaml", []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: a, image: "+image+"}]}\n"), manifest.Options{NodeName: "n1", Source: manifest.SourceFile})
		if err != nil {
			t.Fatal(err)
		}
		return objects
	}
	before, now := read("i:1"), read("i:2")
	wanted.Update(source.Update{Source: manifest.SourceFile, Files: []source.File{{Path: "web.yaml", Objects: now}}})
	s := serverOf(wanted)
	s.o.Files = accepted(func() []*v1.Pod { return []*v1.Pod{before[0].(*v1.Pod), now[0].(*v1.Pod)} })
	if list, _ := s.cache.List("Pod"); len(list) != 1 || list[0].GetUID() != now[0].GetUID() || list[0].GetDeletionTimestamp() != nil {
		t.Errorf("listed %v", list)
	}
	if all := s.sources.pods(); len(all) != 2 || all[1].pod.UID != before[0].GetUID() || all[1].object().GetDeletionTimestamp() == nil {
		t.Errorf("there are %v", all)
	}
	wanted.Update(source.Update{Source: manifest.SourceFile})
	s.o.Files = accepted(func() []*v1.Pod { return []*v1.Pod{before[0].(*v1.Pod)} })
	if list, _ := s.cache.List("Pod"); len(list) != 1 || list[0].GetDeletionTimestamp() == nil {
		t.Errorf("a pod that ends: %v", list)
	}
}

// An informer with a selector keeps an object until it receives a DELETED. An object that stops
// matching is sent as DELETED, one that begins to match as ADDED.
func TestWatchWithSelector(t *testing.T) {
	for name, test := range map[string]struct{ from, to, want string }{
		"leaves":        {"a", "b", "DELETED"},
		"enters":        {"b", "a", "ADDED"},
		"stays":         {"a", "a", ""},
		"stays outside": {"b", "c", ""},
		"comes":         {"", "a", "ADDED"},
		"goes":          {"a", "", "DELETED"},
		"goes outside":  {"b", "", ""},
	} {
		for _, fresh := range []bool{true, false} { // a watch that begins with existing objects, and one that follows a list
			t.Run(fmt.Sprintf("%s/fresh=%v", name, fresh), func(t *testing.T) {
				first, last := [2]string{"first", "x"}, [2]string{"last", "x"}
				wanted := source.NewManager([]string{manifest.SourceFile}, workload.Expand)
				set := func(label string, more ...[2]string) {
					if label != "" {
						more = append(more, [2]string{"it", label})
					}
					wanted.Update(configMaps(t, append(more, [2]string{"same", "a"})...))
				}
				set(test.from)
				s := serverOf(wanted)
				web := httptest.NewServer(s)
				defer web.Close()
				query := "?watch=true&labelSelector=tier+in+(a,x)"
				if !fresh {
					_, seq := s.cache.List("ConfigMap")
					query += fmt.Sprintf("&resourceVersion=%d", seq)
				}
				resp, err := http.Get(web.URL + "/api/v1/configmaps" + query)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				lines := bufio.NewScanner(resp.Body)
				next := func() (kind, name string) {
					t.Helper()
					if !lines.Scan() {
						t.Fatal("the watch ended")
					}
					var e struct {
						Type   string
						Object v1.ConfigMap
					}
					if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
						t.Fatal(err)
					}
					return e.Type, e.Object.Name
				}
				if fresh {
					for known := 1 + len(test.from); known > 0 && (test.from == "a" || known > 1); known-- {
						next()
					}
				}
				set(test.to)
				s.Poke()
				set(test.to, first) // then another change that is sent
				s.Poke()
				var got string
				for name := ""; name != "last"; {
					var kind string
					switch kind, name = next(); name {
					case "first":
						set(test.to, first, last)
						s.Poke()
					case "it":
						got += kind + " it"
					}
				}
				want := test.want
				if want != "" {
					want += " it"
				}
				if got != want {
					t.Errorf("got %q, want %q", got, want)
				}
			})
		}
	}
}

// What changed between the list of a client and its watch is sent as DELETED only if it may have
// been in that list: kubectl prints each event of a watch.
func TestWatchSkipsOthers(t *testing.T) {
	for query, want := range map[string]string{
		"namespaces/default/configmaps?":                                           "map[it:MODIFIED left:MODIFIED other:MODIFIED]",
		"namespaces/default/configmaps?labelSelector=tier=a":                       "map[it:MODIFIED left:DELETED]",
		"namespaces/default/configmaps?fieldSelector=metadata.name=it":             "map[it:MODIFIED]",
		"configmaps?fieldSelector=metadata.name!=it":                               "map[elsewhere:MODIFIED left:MODIFIED other:MODIFIED]",
		"namespaces/elsewhere/configmaps?":                                         "map[elsewhere:MODIFIED]",
		"namespaces/nowhere/configmaps?":                                           "map[]",
		"configmaps?labelSelector=tier=a&fieldSelector=metadata.namespace=nowhere": "map[]",
	} {
		wanted := source.NewManager([]string{manifest.SourceFile}, workload.Expand)
		set := func(data, left string) {
			u := configMaps(t, [2]string{"it", "a"}, [2]string{"other", "b"}, [2]string{"elsewhere", "b"}, [2]string{"left", left})
			for _, o := range u.Files[0].Objects {
				o.(*v1.ConfigMap).Data = map[string]string{"key": data}
				if o.GetName() == "elsewhere" {
					o.SetNamespace("elsewhere")
				}
			}
			wanted.Update(u)
		}
		set("1", "a")
		s := serverOf(wanted)
		_, seq := s.cache.List("ConfigMap")
		set("2", "b")
		s.Poke()
		w := httptest.NewRecorder()
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // after the first events
		s.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", fmt.Sprintf("/api/v1/%s&watch=true&resourceVersion=%d", query, seq), nil))
		got := map[string]string{}
		for lines := bufio.NewScanner(w.Body); lines.Scan(); {
			var e struct {
				Type   string
				Object v1.ConfigMap
			}
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				t.Fatal(err)
			}
			got[e.Object.Name] += e.Type
		}
		if fmt.Sprint(got) != want {
			t.Errorf("%s: %v, want %s", query, got, want)
		}
	}
}

// An ending pod is sent once, when its end is recorded, and not at each check for changes.
func TestEndingPodIsNoChange(t *testing.T) {
	wanted := source.NewManager([]string{manifest.SourceFile}, workload.Expand)
	s := serverOf(wanted)
	wanted.Update(source.Update{Source: manifest.SourceFile})
	pod := &v1.Pod{}
	pod.Name, pod.Namespace, pod.UID = "web", "default", "u1"
	files := ending{accepted: func() []*v1.Pod { return []*v1.Pod{pod} }}
	s.o.Files = files
	if at := s.sources.pods()[0].object().GetDeletionTimestamp(); at != nil {
		t.Errorf("deletionTimestamp is %v before the end is recorded", at)
	}
	files.since = time.Now()
	s.o.Files = files
	first := s.sources.pods()[0].object().GetDeletionTimestamp()
	want := metav1.NewTime(files.since).Rfc3339Copy()
	if again := s.sources.pods()[0].object().GetDeletionTimestamp(); !again.Equal(first) || !first.Equal(&want) {
		t.Errorf("deletionTimestamp is %v, then %v, want %v", first, again, want)
	}
}

type ending struct {
	accepted
	since time.Time
}

func (e ending) EndingSince(types.UID) time.Time { return e.since }
