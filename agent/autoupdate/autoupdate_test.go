package autoupdate

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/test/formats"
	"github.com/crisp-cri/crisp/test/powercut"
	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const tag = "reg.test/app:v1"

func image(n string) string { return "reg.test/app@sha256:" + strings.Repeat(n, 64) }

func to(from, to string) map[string]Change {
	return map[string]Change{"app": {tag, image(from), image(to)}}
}

func pod(uid, workload string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: uid, UID: types.UID(uid), Annotations: map[string]string{manifest.AnnotationAutoUpdate: "registry"}}}
	if workload != "" {
		p.Annotations[manifest.AnnotationWorkload], p.Annotations[manifest.AnnotationRevision] = workload, "1"
	}
	p.Spec = v1.PodSpec{RestartPolicy: v1.RestartPolicyAlways, Containers: []v1.Container{{Name: "app", Image: tag, ImagePullPolicy: v1.PullAlways}}}
	return p
}

// A place has pods that run what the store says as soon as it says so, and are ready unless the
// image is bad.
type place struct {
	t    *testing.T
	path string
	*Store
	now      time.Time
	pods     []*v1.Pod
	bad      string // an image by digest
	runs     map[types.UID]string
	statuses map[types.UID]*v1.PodStatus
	changed  []string // by the last steps
}

func newPlace(t *testing.T, pods ...*v1.Pod) *place {
	p := &place{t: t, path: filepath.Join(t.TempDir(), "updates.json"), now: time.Unix(1e9, 0), pods: pods, runs: map[types.UID]string{}, statuses: map[types.UID]*v1.PodStatus{}}
	p.reopen()
	p.work()
	return p
}

func (p *place) reopen() { p.Store = Open(p.path, DefaultTimeout, slog.New(slog.DiscardHandler)) }

// work does what workers do.
func (p *place) work() {
	for _, wanted := range p.pods {
		pod := p.Pin(wanted)
		c := &pod.Spec.Containers[0]
		s := p.statuses[pod.UID]
		if p.runs[pod.UID] != c.Image {
			p.runs[pod.UID] = c.Image
			s = &v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{{Name: "app", Image: c.Image}}}
			if c.Image == p.bad {
				s.ContainerStatuses[0].State.Waiting = &v1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}
				s.ContainerStatuses[0].LastTerminationState.Terminated = &v1.ContainerStateTerminated{ExitCode: 7, Reason: "Error"}
			} else {
				s.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: metav1.NewTime(p.now)}}
			}
			p.statuses[pod.UID] = s
		}
		state := podsync.Running
		if s.ContainerStatuses[0].State.Waiting != nil {
			state = podsync.Exited
		}
		p.Observed(pod, podsync.Have{Containers: []podsync.Container{{UID: string(pod.UID), Name: "app", State: state, Hash: podsync.Hash(c)}}})
	}
}

func (p *place) begin(pod *v1.Pod, changes map[string]Change) { p.Begin(pod, changes, p.pods, p.now) }

func (p *place) status(uid types.UID) *v1.PodStatus { return p.statuses[uid] }

// pass lets time pass, in the agent's steps.
func (p *place) pass(d time.Duration) *place {
	p.changed = nil
	for end := p.now.Add(d); p.now.Before(end); p.now = p.now.Add(time.Second) {
		for _, pod := range p.Step(p.pods, true, p.status, p.now) {
			p.changed = append(p.changed, pod.Name)
		}
		p.work()
	}
	return p
}

// is compares the images that pods run, and the state and message of the first one's condition.
func (p *place) is(text string, images ...string) {
	p.t.Helper()
	got := ""
	if c := p.Condition(p.pods[0]); c != nil {
		got = string(c.Status) + " " + c.Reason + ": " + strings.NewReplacer("111111111111", "1", "222222222222", "2", "333333333333", "3", "sha256:", "").Replace(c.Message)
	}
	var run []string
	for _, pod := range p.pods {
		_, digest, _ := strings.Cut(p.runs[pod.UID], "@sha256:")
		run = append(run, digest[:min(1, len(digest))]) // "" is by tag
	}
	if d := cmp.Diff(text, got) + cmp.Diff(images, run); d != "" {
		p.t.Errorf("after %v:\n%s", p.now.Sub(time.Unix(1e9, 0)), d)
	}
}

// A pod gets another image; if that is bad, the former one, and no more of the bad one.
func TestUpdate(t *testing.T) {
	web := pod("web", "")
	p := newPlace(t, web)
	p.begin(web, to("1", "2"))
	if p.pass(5 * time.Second); !slices.Equal(p.changed, []string{"web"}) {
		t.Errorf("changed %v", p.changed)
	}
	p.is("Unknown Trying: container app is being updated from 1 to 2", "2")
	if got := slices.Collect(p.InUse); !slices.Contains(got, image("1")) || !slices.Contains(got, image("2")) {
		t.Errorf("in use: %v", got)
	}
	if c := p.Pin(web).Spec.Containers[0]; c.ImagePullPolicy != v1.PullIfNotPresent || web.Spec.Containers[0].Image != tag {
		t.Errorf("the pod is %+v, of %+v", c, web.Spec.Containers[0])
	}
	p.pass(10*time.Second).is("True Updated: container app was updated from 1 to 2", "2")
	if got := slices.Collect(p.InUse); !slices.Equal(got, []string{image("2")}) {
		t.Errorf("in use later: %v", got)
	}

	p.bad = image("3")
	p.begin(web, to("2", "3"))
	p.pass(30*time.Second).is("Unknown Trying: container app is being updated from 2 to 3", "3")
	p.pass(40*time.Second).is("False RolledBack: container app was rolled back from 3 to 2: container app ended with code 7 (Error)", "2")
	p.reopen()
	p.bad = ""
	p.begin(web, to("2", "3"))
	p.pass(time.Hour).is("False RolledBack: container app was rolled back from 3 to 2: container app ended with code 7 (Error)", "2")
	p.begin(web, to("2", "1"))
	p.pass(time.Minute).is("True Updated: container app was updated from 2 to 1", "1")
	p.begin(web, to("1", "3"))
	p.pass(time.Minute).is("True Updated: container app was updated from 1 to 3", "3")
}

// The pods of a workload change one after the other. When one does not become ready, all that have
// changed change back; the others go on undisturbed, unless they have got the bad image by its tag.
func TestWorkload(t *testing.T) {
	a, b, c := pod("a", "deployment default/w"), pod("b", "deployment default/w"), pod("c", "deployment default/w")
	p := newPlace(t, a, b, c)
	p.begin(a, to("1", "2"))
	p.begin(b, to("1", "2"))
	p.pass(5*time.Second).is("Unknown Trying: container app is being updated from 1 to 2", "2", "", "")
	p.pass(10*time.Second).is("Unknown Trying: container app is being updated from 1 to 2", "2", "2", "")
	if p.Condition(c) != nil {
		t.Error("a pod that waits has a condition")
	}
	p.bad, p.runs["b"] = image("2"), "it ends"
	p.work()
	p.pass(2*time.Minute).is("False RolledBack: container app was rolled back from 2 to 1: container app ended with code 7 (Error)", "1", "1", "")
	p.statuses["c"].ContainerStatuses[0].ImageID = image("2")
	p.pass(time.Second).is("False RolledBack: container app was rolled back from 2 to 1: container app ended with code 7 (Error)", "1", "1", "1")
	p.bad, p.pods = "", append(p.pods, pod("d", "deployment default/w"))
	p.work()
	p.is("False RolledBack: container app was rolled back from 2 to 1: container app ended with code 7 (Error)", "1", "1", "1", "1")
	p.begin(b, to("1", "3"))
	p.pass(2*time.Minute).is("True Updated: container app was updated from 1 to 3", "3", "3", "3", "3")
}

// Time in which a pod cannot become ready does not count: it is stopped, the agent is away, the
// runtime does not answer. The next agent goes on with what it finds on disk.
func TestTimeThatDoesNotCount(t *testing.T) {
	web := pod("web", "")
	p := newPlace(t, web)
	p.begin(web, to("1", "2"))
	p.pass(time.Second)
	s := p.statuses["web"]
	s.Conditions, s.Reason = nil, podsync.StoppedReason
	p.pass(time.Hour).is("Unknown Trying: container app is being updated from 1 to 2", "2")
	s.Reason = ""
	delete(p.statuses, "web")
	p.Step(p.pods, true, p.status, p.now.Add(time.Hour))
	p.statuses["web"], p.now = s, p.now.Add(2*time.Hour)
	p.reopen()
	p.pass(DefaultTimeout-time.Second).is("Unknown Trying: container app is being updated from 1 to 2", "2")
	p.pass(2*time.Second).is("False RolledBack: container app was rolled back from 2 to 1: the pod was not ready within 5m0s", "1")
	p.Step(nil, false, p.status, p.now)
	if p.reopen(); p.Condition(web) == nil {
		t.Error("forgotten before all sources have reported")
	}
	p.Step(nil, true, p.status, p.now)
	if p.reopen(); p.Condition(web) != nil {
		t.Error("known of a pod that is gone")
	}
}

// What the manifest says last counts: another tag, or no annotation.
func TestEdited(t *testing.T) {
	web := pod("web", "")
	p := newPlace(t, web)
	p.begin(web, to("1", "2"))
	p.pass(time.Minute).is("True Updated: container app was updated from 1 to 2", "2")
	delete(web.Annotations, manifest.AnnotationAutoUpdate)
	p.work()
	p.is("", "")
	web.Annotations[manifest.AnnotationAutoUpdate], web.Spec.Containers[0].Image = "registry", "reg.test/app:v2"
	p.pass(time.Second).is("", "")
	web.Spec.Containers[0].Image = tag
	p.pass(time.Second).is("True Updated: container app was updated from 1 to 2", "2")
}

// A file that is damaged is put aside.
func TestDamaged(t *testing.T) {
	p := newPlace(t, pod("web", ""))
	if err := os.WriteFile(p.path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.reopen()
	if _, err := os.Stat(p.path + ".damaged"); err != nil {
		t.Error(err)
	}
	p.begin(p.pods[0], to("1", "2"))
	p.pass(time.Minute).is("True Updated: container app was updated from 1 to 2", "2")
}

func TestFormats(t *testing.T) { formats.Check[file](t, "updates", nil) }

// After a power cut a pod does not run an image untried, or again one that was rolled back.
func TestPowerCut(t *testing.T) {
	web := pod("web", "")
	now := time.Unix(1e9, 0)
	powercut.Case{
		Name: "updates",
		Run: func(dir string, safe func(string)) {
			s := Open(filepath.Join(dir, "updates.json"), time.Minute, slog.New(slog.DiscardHandler))
			s.Begin(web, to("1", "2"), nil, now)
			status := func(types.UID) *v1.PodStatus { return &v1.PodStatus{} }
			safe("begun")
			s.Step([]*v1.Pod{web}, true, status, now)
			s.Step([]*v1.Pod{web}, true, status, now.Add(time.Hour))
			safe("rolled back")
		},
		Check: func(dir string, safe []string) error {
			got := ""
			if c := Open(filepath.Join(dir, "updates.json"), time.Minute, slog.New(slog.DiscardHandler)).Condition(web); c != nil {
				got = c.Reason
			}
			if begun := slices.Contains(safe, "begun"); begun && got == "" || slices.Contains(safe, "rolled back") && got != RolledBack {
				return fmt.Errorf("after %v it is %q", safe, got)
			}
			return nil
		},
	}.Test(t)
}
