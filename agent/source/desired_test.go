package source_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/source"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// pod parses "web@1", a name and a UID; "web@1:l" has a label, "web@1*" another status, "web@1-5"
// is being deleted with a grace period of 5 s.
func pod(word, path, from string) *v1.Pod {
	p := &v1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod"}}
	word, label, labelled := strings.Cut(word, ":")
	word, grace, deleted := strings.Cut(word, "-")
	word, changed := strings.CutSuffix(word, "*")
	name, uid, _ := strings.Cut(word, "@")
	p.Namespace, p.Name, p.UID = "default", name, types.UID(uid)
	p.Annotations = map[string]string{manifest.AnnotationFile: path, manifest.AnnotationSource: from}
	if labelled {
		p.Labels = map[string]string{"l": label}
	}
	if changed {
		p.ResourceVersion = "2"
	}
	if deleted {
		seconds, _ := strconv.ParseInt(grace, 10, 64)
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{}, &seconds
	}
	return p
}

// update parses "a.yaml web@1 db@2, b.yaml": files of a source with their pods; "!" marks a bad
// file.
func update(from, text string) source.Update {
	u := source.Update{Source: from}
	for part := range strings.SplitSeq(text, ",") {
		words := strings.Fields(part)
		if len(words) == 0 {
			continue
		}
		f := source.File{Path: words[0]}
		for _, word := range words[1:] {
			if word == "!" {
				f.Err = errors.New(f.Path + " is broken")
				continue
			}
			f.Objects = append(f.Objects, pod(word, f.Path, from))
		}
		u.Files = append(u.Files, f)
	}
	return u
}

func describeChanges(changes []source.Change) string {
	var words []string
	for _, c := range changes {
		word := c.Op.String() + " " + c.Key.Name
		if c.Pod != nil {
			word += "@" + string(c.Pod.UID)
		}
		words = append(words, word)
	}
	return strings.Join(words, ", ")
}

// The updates of sources become the five operations and nothing else.
func TestUpdate(t *testing.T) {
	m := source.NewManager([]string{"file", "http", "api"}, nil)
	for _, step := range []struct {
		name, source, files string
		changes, broken     string
	}{
		{"first", "file", "a web@1, b db@1", "ADD db@1, ADD web@1", ""},
		{"nothing new", "file", "a web@1, b db@1", "", ""},
		{"a file is touched", "file", "a web@1, b db@1, c", "", ""},
		{"another pod of this name", "file", "a web@2, b db@1", "ADD web@2", ""},
		{"the same pod, changed", "file", "a web@2:x, b db@1", "UPDATE web@2", ""},
		{"only its record", "file", "a web@2*:x, b db@1", "RECONCILE web@2", ""},
		{"a broken file keeps its pod", "file", "a web@2 !, b db@1", "UPDATE web@2", "a is broken\n"},
		{"and is reported once", "file", "a web@2 !, b db@2", "ADD db@2", ""},
		{"a second source", "http", "u job@1", "ADD job@1", ""},
		{"which may not take a name", "http", "u job@1 web@9", "", "u: metadata.name: pod default/web is already defined in a\n"},
		{"a third", "api", "x job@7, y tmp@1", "ADD tmp@1", "x: metadata.name: pod default/job is already defined in u\n"},
		{"is being deleted", "api", "y tmp@1-30", "DELETE tmp@1", ""},
		{"still", "api", "y tmp@1-30", "", ""},
		{"and faster", "api", "y tmp@1-5", "DELETE tmp@1", ""},
		{"and is gone", "api", "", "REMOVE tmp", ""},
		{"a name becomes free", "file", "b db@2", "ADD web@9", ""},
		{"a pod moves to another file", "file", "c db@2", "UPDATE db@2", ""},
		{"none", "file", "", "REMOVE db", ""},
	} {
		changes, _, problems := m.Update(update(step.source, step.files))
		broken := ""
		for _, err := range problems {
			broken += err.Error() + "\n"
		}
		if got := describeChanges(changes); got != step.changes || broken != step.broken {
			t.Errorf("%s: changes %q, problems %q; want %q, %q", step.name, got, broken, step.changes, step.broken)
		}
	}
}

// An ephemeral container is a change of the pod's spec: its generation grows, so that clients see
// from observedGeneration when the agent knows it.
func TestEphemeralGeneration(t *testing.T) {
	m := source.NewManager([]string{"api"}, nil)
	m.Update(update("api", "a web@1"))
	before := m.Object("pod default/web").GetGeneration()
	var list []v1.EphemeralContainer
	for i := range 3 {
		list = append(list, v1.EphemeralContainer{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: fmt.Sprint("look", i)}})
		m.SetEphemeral("1", list)
		if changes := describeChanges(m.Reconcile()); changes != "UPDATE web@1" {
			t.Errorf("changes: %s", changes)
		}
		if got, want := m.Object("pod default/web").GetGeneration(), before+int64(len(list)); got != want {
			t.Errorf("with %d ephemeral containers the generation is %d, want %d", len(list), got, want)
		}
	}
}

// Until all sources have reported, no pod may be ended for being unwanted.
func TestReady(t *testing.T) {
	m := source.NewManager([]string{"file", "http"}, nil)
	for i, step := range []struct {
		source string
		want   bool
	}{{"file", false}, {"file", false}, {"http", true}} {
		if m.Update(update(step.source, "")); m.Ready() != step.want {
			t.Errorf("step %d: ready is %v, want %v", i, m.Ready(), step.want)
		}
	}
}

func TestSources(t *testing.T) {
	m := source.NewManager([]string{"file", "http"}, nil)
	m.Update(update("file", "a web@1, b db@1 !, c web@2"))
	got := fmt.Sprintf("%+v", m.Sources())
	want := "[{Name:file Reported:true Files:[{Source:file Path:a Objects:[pod default/web] Error: Warnings:[]}" +
		" {Source:file Path:b Objects:[pod default/db] Error:b is broken Warnings:[]}" +
		" {Source:file Path:c Objects:[pod default/web] Error:c: metadata.name: pod default/web is already defined in a Warnings:[]}]}" +
		" {Name:http Reported:false Files:[]}]"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func job(t *testing.T) manifest.Object {
	t.Helper()
	objects, _, err := manifest.Read("a", []byte(`{apiVersion: batch/v1, kind: Job, metadata: {name: j}, spec: {
		template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}`), manifest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return objects[0]
}

// Without controllers a workload is rejected by its name; what else is in its file counts.
func TestWorkloadWithoutControllers(t *testing.T) {
	m := source.NewManager([]string{"file"}, nil)
	changes, _, problems := m.Update(source.Update{Source: "file", Files: []source.File{{Path: "a", Objects: []manifest.Object{job(t), pod("web@1", "a", "file")}}}})
	if got := describeChanges(changes); got != "ADD web@1" {
		t.Errorf("changes: %s", got)
	}
	if want := "a: kind: job default/j is a workload: this agent has no controllers, and runs pods only"; len(problems) != 1 || problems[0].Error() != want {
		t.Errorf("problems: %v, want %s", problems, want)
	}
}

// A workload is planned again soon after its time has come, even if the machine was suspended or
// the clock was set forward, which timers do not notice.
func TestPlannedAgainAfterSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := source.NewManager([]string{"file"}, func(job manifest.Object, _ []source.WorkloadPod, now time.Time) source.Plan {
			p := pod("j-0@1", "a", "file")
			p.Annotations[manifest.AnnotationWorkload] = manifest.Key(job)
			return source.Plan{Pods: []*v1.Pod{p}, Again: now.Add(10 * time.Hour)}
		})
		changes, _, _ := m.Update(source.Update{Source: "file", Files: []source.File{{Path: "a", Objects: []manifest.Object{job(t)}}}})
		m.Observe(changes[0].Pod, v1.PodStatus{Phase: v1.PodRunning, StartTime: &metav1.Time{Time: time.Now()}})
		for range 3 {
			<-m.Due()
			m.Reconcile()
			time.Sleep(time.Minute)
			synctest.Wait()
			if len(m.Due()) == 0 {
				t.Fatal("the clock is not looked at")
			}
		}
		m.Update(source.Update{Source: "file"})
	})
}
