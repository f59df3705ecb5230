// Package autoupdate replaces the images of pods that ask for it (manifest.AutoUpdated) when their
// tags have moved, and takes that back if a pod does not become ready.
//
//	           another image            ready for a while
//	(by tag) ────────────────▶ Trying ────────────────────▶ Updated
//	                           ▲    │ not ready in time        │ another image
//	                           │    └────────▶ RolledBack      ▼
//	                           └────────────────────┴──────────┘
//
// A wanted pod keeps its tags. Pin gives its worker the pod with images by digest instead, so that
// containers of another image restart as after an edit. The pods of a workload's revision change one
// after the other, and back together.
package autoupdate

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/internal/atomicfile"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// DefaultTimeout is how long a pod may take to become ready with another image.
	DefaultTimeout = 5 * time.Minute
	// failing is how long one of its containers may be unable to run.
	failing = time.Minute
	// settle is how long the pod must have been ready.
	settle = 10 * time.Second
	// MinTimeout is the shortest timeout in which a pod can succeed.
	MinTimeout = 2 * settle
)

// The states of an update are the reasons of the condition podsync.ImageUpdated.
const (
	Trying     = "Trying"
	Updated    = "Updated"
	RolledBack = "RolledBack"
)

var (
	conditions = map[string]v1.ConditionStatus{Trying: v1.ConditionUnknown, Updated: v1.ConditionTrue, RolledBack: v1.ConditionFalse}
	words      = map[string]string{Trying: "is being updated", Updated: "was updated", RolledBack: "was rolled back"}
)

// A Change is a container's image whose tag has moved.
type Change struct {
	Tag      string // as in the manifest
	From, To string // by digest
}

// images are references by digest, by container.
type images map[string]string

// An update is the last one of a pod, or of the pods of a workload's revision.
type update struct {
	State   string      `json:"state"`
	At      time.Time   `json:"at"`                // since when
	Why     string      `json:"why,omitempty"`     // it was rolled back
	Tags    images      `json:"tags"`              // what the others replace, as in the manifest
	Base    images      `json:"base,omitempty"`    // of pods that wait; without one, their tags count
	From    images      `json:"from"`              // of pods that were rolled back
	To      images      `json:"to"`                // of the others
	Bad     images      `json:"bad,omitempty"`     // rolled back, and not to be tried again
	Waiting []types.UID `json:"waiting,omitempty"` // pods that do not take part yet
}

type file struct {
	Checked time.Time          `json:"checked"`           // when registries were last asked
	Updates map[string]*update `json:"updates,omitempty"` // by keyOf
}

// keyOf returns what the pods of a workload's revision have in common; of others, it is the UID.
func keyOf(pod *v1.Pod) string {
	if workload := pod.Annotations[manifest.AnnotationWorkload]; workload != "" {
		return workload + " " + pod.Annotations[manifest.AnnotationRevision]
	}
	return string(pod.UID)
}

func (u *update) waits(pod *v1.Pod) bool { return slices.Contains(u.Waiting, pod.UID) }

func (u *update) take(pod *v1.Pod) {
	u.Waiting = slices.DeleteFunc(u.Waiting, func(uid types.UID) bool { return uid == pod.UID })
}

// pins returns the images that replace those of the manifest, which may have others since.
func (u *update) pins(pod *v1.Pod) images {
	list := u.To
	if u.waits(pod) {
		list = u.Base
	} else if u.State == RolledBack {
		list = u.From
	}
	list = maps.Clone(list)
	maps.DeleteFunc(list, func(name, image string) bool {
		c := podsync.ContainerOf(&pod.Spec, name)
		return c == nil || c.Image != u.Tags[name] && c.Image != image
	})
	return list
}

// text says what has become of a pod's images.
func (u *update) text(pod *v1.Pod) string {
	short := func(image string) string {
		digest := image[strings.LastIndexByte(image, '@')+1:]
		return digest[:min(len(digest), len("sha256:")+12)]
	}
	var list []string
	for _, c := range slices.Sorted(maps.Keys(u.pins(pod))) {
		from, to := u.From[c], u.To[c]
		if u.State == RolledBack {
			from, to = to, from
		}
		if from != to {
			list = append(list, "container "+c+" "+words[u.State]+" from "+short(from)+" to "+short(to))
		}
	}
	if len(list) > 0 && u.Why != "" {
		return strings.Join(list, ", ") + ": " + u.Why
	}
	return strings.Join(list, ", ")
}

// A Store has the updates of all pods, in one file. It is safe for concurrent use.
type Store struct {
	path    string
	timeout time.Duration
	log     *slog.Logger

	mu      sync.Mutex
	f       file                 // as on disk, if there is room; guarded by mu, like all fields below
	begun   map[types.UID]bool   // pods whose updates have begun since the last Step
	since   map[string]time.Time // when the last pod of an update began, as far as this agent knows, by keyOf
	current map[types.UID]bool   // pods that run what is being tried
}

// Open reads the updates of an earlier agent. A file that cannot be read is renamed to PATH.damaged;
// then tags count.
func Open(path string, timeout time.Duration, log *slog.Logger) *Store {
	s := &Store{path: path, timeout: timeout, log: log, begun: map[types.UID]bool{}, since: map[string]time.Time{}, current: map[types.UID]bool{}}
	if err := atomicfile.ReadJSON(path, &s.f); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.f = file{}
		log.Error("updates of images not read: pods run what their tags mean", "path", path, "err", err, "aside", os.Rename(path, path+".damaged") == nil)
	}
	if s.f.Updates == nil {
		s.f.Updates = map[string]*update{}
	}
	return s
}

func (s *Store) saveLocked() {
	if err := atomicfile.SaveJSON(s.path, s.f); err != nil {
		s.log.Error("updates of images not saved", "err", err)
	}
}

// Checked returns when SetChecked was last called.
func (s *Store) Checked() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.f.Checked
}

func (s *Store) SetChecked(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.f.Checked = now
	s.saveLocked()
}

func (s *Store) ofLocked(pod *v1.Pod) *update {
	if !manifest.AutoUpdated(pod) {
		return nil
	}
	return s.f.Updates[keyOf(pod)]
}

// Pin returns the pod with the images that it is to run.
func (s *Store) Pin(pod *v1.Pod) *v1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.ofLocked(pod)
	if u == nil {
		return pod
	}
	pod = pod.DeepCopy()
	for name, image := range u.pins(pod) {
		c := podsync.ContainerOf(&pod.Spec, name)
		c.Image, c.ImagePullPolicy = image, v1.PullIfNotPresent
	}
	return pod
}

// InUse yields the images that must stay: what is being tried, and what may have to run again.
func (s *Store) InUse(yield func(string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.f.Updates {
		for name := range u.To {
			if u.State != Updated && !yield(u.From[name]) || u.State != RolledBack && !yield(u.To[name]) {
				return
			}
		}
	}
}

// Condition returns the condition that tells of a pod's last update; nil if there was none.
func (s *Store) Condition(pod *v1.Pod) *v1.PodCondition {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.ofLocked(pod)
	if u == nil || u.waits(pod) || u.text(pod) == "" {
		return nil
	}
	return &v1.PodCondition{Type: podsync.ImageUpdated, Status: conditions[u.State], Reason: u.State, Message: u.text(pod), LastTransitionTime: metav1.Time{Time: u.At}}
}

// Begin begins an update of a pod, if no other is being tried. The others of its workload, among all,
// wait. Images that were rolled back do not count.
func (s *Store) Begin(pod *v1.Pod, changes map[string]Change, all []*v1.Pod, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := keyOf(pod)
	was := s.f.Updates[key]
	if was == nil {
		was = &update{}
	}
	base := was.pins(pod)
	u := &update{State: Trying, At: now, Tags: images{}, Base: base, From: images{}, To: images{}, Bad: images{}}
	maps.Copy(u.Tags, was.Tags)
	maps.Copy(u.From, base)
	maps.Copy(u.To, base)
	maps.Copy(u.Bad, was.Bad)
	for name, c := range changes {
		if c.To != was.Bad[name] {
			u.Tags[name], u.From[name], u.To[name] = c.Tag, c.From, c.To
			delete(u.Bad, name)
		}
	}
	if was.State == Trying || maps.Equal(u.To, base) {
		return
	}
	for _, other := range all {
		if keyOf(other) == key && other.UID != pod.UID {
			u.Waiting = append(u.Waiting, other.UID)
		}
	}
	s.f.Updates[key], s.since[key], s.begun[pod.UID] = u, now, true
	delete(s.current, pod.UID)
	s.saveLocked()
}

// Observed takes in what a worker sees of a pod from Pin, whose status has it already.
func (s *Store) Observed(pod *v1.Pod, have podsync.Have) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.ofLocked(pod)
	if u == nil || u.State != Trying {
		return
	}
	is := true
	for name, image := range u.pins(pod) {
		spec := podsync.ContainerOf(&pod.Spec, name)
		c, _ := have.Newest(string(pod.UID), name)
		is = is && spec.Image == image && c.State == podsync.Running && c.Hash == podsync.Hash(spec)
	}
	s.current[pod.UID] = is
}

// Step goes on with all updates. pods are the wanted ones; if all, others are forgotten. It returns
// those that have other images, or another condition, from now on.
func (s *Store) Step(pods []*v1.Pod, all bool, status func(types.UID) *v1.PodStatus, now time.Time) (changed []*v1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	groups := map[string][]*v1.Pod{}
	for _, pod := range pods {
		u := s.ofLocked(pod)
		if u == nil {
			continue
		}
		groups[keyOf(pod)] = append(groups[keyOf(pod)], pod)
		if u.State == RolledBack && u.waits(pod) && u.runsBad(status(pod.UID)) {
			u.take(pod)
			changed = append(changed, pod)
		}
	}
	before := len(s.f.Updates)
	maps.DeleteFunc(s.f.Updates, func(key string, _ *update) bool { return all && groups[key] == nil })
	for key, group := range groups {
		if s.f.Updates[key].State == Trying {
			changed = append(changed, s.judgeLocked(key, group, status, now)...)
		}
	}
	if len(changed) > 0 || len(s.f.Updates) < before {
		s.saveLocked()
	}
	for _, pod := range pods {
		if s.begun[pod.UID] {
			changed = append(changed, pod)
		}
	}
	clear(s.begun)
	return changed
}

// runsBad reports whether a pod has got, by its tag, an image that was rolled back for another.
func (u *update) runsBad(s *v1.PodStatus) bool {
	return s != nil && slices.ContainsFunc(s.ContainerStatuses, func(c v1.ContainerStatus) bool { return c.ImageID != "" && c.ImageID == u.Bad[c.Name] })
}

// judgeLocked lets the next pod take part when those that do are ready, and rolls all of them back
// when they are not in time. Pods that are stopped or evicted have all the time.
func (s *Store) judgeLocked(key string, group []*v1.Pod, status func(types.UID) *v1.PodStatus, now time.Time) []*v1.Pod {
	u, ready, why, limit := s.f.Updates[key], true, "", s.timeout
	var taking, waiting []*v1.Pod
	for _, pod := range group {
		if u.waits(pod) {
			waiting = append(waiting, pod)
			continue
		}
		taking = append(taking, pod)
		st := status(pod.UID)
		if s.since[key].IsZero() || st == nil || podsync.Halted(st) {
			s.since[key] = now
		}
		if st == nil {
			return nil
		}
		at, is := podsync.Ready(st)
		ready = ready && is && s.current[pod.UID] && !podsync.After(at, settle, now).After(now)
		if text := trouble(st); text != "" {
			why, limit = text, min(limit, failing)
		}
	}
	switch {
	case ready && len(waiting) > 0:
		u.take(waiting[0])
		s.since[key] = now
		return waiting[:1]
	case ready:
		u.State, u.At = Updated, now
	case now.Sub(s.since[key]) < limit:
		return nil
	default:
		if u.State, u.At, u.Why = RolledBack, now, why; why == "" {
			u.Why = "the pod was not ready within " + s.timeout.String()
		}
		bad := maps.Clone(u.To)
		maps.DeleteFunc(bad, func(name, image string) bool { return image == u.From[name] })
		maps.Copy(bad, u.Bad)
		u.Bad = bad
	}
	return taking
}

// trouble says which container of a pod cannot run, and why; "" if there is none.
func trouble(s *v1.PodStatus) string {
	for _, c := range slices.Concat(s.InitContainerStatuses, s.ContainerStatuses) {
		w, end := c.State.Waiting, c.LastTerminationState.Terminated
		switch {
		case w == nil || w.Reason == "ContainerCreating" || w.Reason == "PodInitializing":
		case w.Reason == "CrashLoopBackOff" && end != nil:
			return fmt.Sprintf("container %s ended with code %d (%s)", c.Name, end.ExitCode, end.Reason)
		default:
			return "container " + c.Name + " waits: " + w.Reason + ": " + w.Message
		}
	}
	return ""
}
