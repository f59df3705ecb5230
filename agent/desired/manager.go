package desired

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/source"
	"github.com/crisp-cri/crisp/agent/workload"
	"github.com/crisp-cri/crisp/internal/poke"
)

// precedence is the order in which sources win.
var precedence = []string{manifest.SourceFile, manifest.SourceHTTP, manifest.SourceAPI}

// A Manager has all objects. Update and Reconcile belong to the loop; all other
// methods may be called from any goroutine.
type Manager struct {
	sources []string
	due     chan struct{} // of capacity 1

	mu        sync.Mutex
	files     map[string][]source.File              // by source; guarded by mu, as all below
	objects   map[string]manifest.Object            // by manifest.Key; those that won
	clashes   map[string]string                     // source and path of a file → what of it lost
	told      map[string]string                     // source and path of a file → the error that was told last
	pods      map[podsync.Key]*v1.Pod               // wanted
	earlier   []*v1.Pod                             // pods of workloads that an earlier agent had; until Ready
	ephemeral map[types.UID][]v1.EphemeralContainer // that were added to running pods
	statuses  map[types.UID]v1.PodStatus            // of the pods of workloads
	expanded  map[string]workload.Plan              // by manifest.Key
	alarm     *time.Timer                           // of the workloads
}

// New returns a Manager that wants nothing yet. sources are those that must
// report before it is Ready.
func New(sources []string) *Manager {
	return &Manager{
		sources: sources, due: make(chan struct{}, 1),
		files: map[string][]source.File{}, objects: map[string]manifest.Object{}, clashes: map[string]string{}, told: map[string]string{},
		pods: map[podsync.Key]*v1.Pod{}, statuses: map[types.UID]v1.PodStatus{}, ephemeral: map[types.UID][]v1.EphemeralContainer{}, expanded: map[string]workload.Plan{},
	}
}

// Resume takes in the pods that an earlier agent has accepted, with the statuses
// they had: workloads go on from them.
func (m *Manager) Resume(accepted []*v1.Pod, status func(*v1.Pod) *v1.PodStatus) {
	for _, pod := range accepted {
		if pod.Annotations[workload.AnnotationWorkload] == "" {
			continue
		}
		s := status(pod)
		m.mu.Lock()
		m.earlier = append(m.earlier, pod)
		if s != nil {
			m.statuses[pod.UID] = *s
		}
		m.mu.Unlock()
	}
}

// Ready reports whether all sources have reported. Before, nothing may be ended
// for not being wanted.
func (m *Manager) Ready() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.readyLocked()
}

// Local reports whether the sources of this machine have reported: they do so soon
// after the start, while an address may not answer for long.
func (m *Manager) Local() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.reportedLocked(func(source string) bool { return source != manifest.SourceHTTP })
}

func (m *Manager) readyLocked() bool { return m.reportedLocked(func(string) bool { return true }) }

func (m *Manager) reportedLocked(of func(source string) bool) bool {
	return !slices.ContainsFunc(m.sources, func(s string) bool { _, reported := m.files[s]; return !reported && of(s) })
}

// Pod returns the wanted pod of this key, or nil.
func (m *Manager) Pod(key podsync.Key) *v1.Pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pods[key]
}

// Pods returns all wanted pods, in the order of keys.
func (m *Manager) Pods() []*v1.Pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.SortedFunc(maps.Values(m.pods), func(a, b *v1.Pod) int { return podsync.KeyOf(a).Compare(podsync.KeyOf(b)) })
}

// Update takes in all that a source has now. problems are the errors that were
// not there before; refers says that an object has changed that pods may refer
// to.
func (m *Manager) Update(u source.Update) (changes []Change, refers bool, problems []error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.files[u.Source] = u.Files
	old := m.objects
	m.mergeLocked()
	refers = refer(old, m.objects)
	changes = m.expandLocked(time.Now())
	return changes, refers, m.problemsLocked()
}

// refer compares the objects that are no pods. A source keeps the object
// of what has not changed.
func refer(old, now map[string]manifest.Object) bool {
	differ := func(a, b map[string]manifest.Object) bool {
		for key, o := range a {
			if !strings.HasPrefix(key, "pod ") && b[key] != o {
				return true
			}
		}
		return false
	}
	return differ(old, now) || differ(now, old)
}

// SetEphemeral makes these the ephemeral containers of the pod with this UID,
// which are in no manifest.
func (m *Manager) SetEphemeral(uid types.UID, containers []v1.EphemeralContainer) {
	m.mu.Lock()
	m.ephemeral[uid] = containers
	m.mu.Unlock()
	m.poke()
}

// debuggedLocked returns the pod with its ephemeral containers.
func (m *Manager) debuggedLocked(pod *v1.Pod) *v1.Pod {
	containers, ok := m.ephemeral[pod.UID]
	if !ok {
		return pod
	}
	pod = pod.DeepCopy()
	pod.Spec.EphemeralContainers = containers
	return pod
}

// Reconcile plans the workloads again, which it is time for when Due says so.
func (m *Manager) Reconcile() []Change {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.expandLocked(time.Now())
}

// Due tells when to call Reconcile.
func (m *Manager) Due() <-chan struct{} { return m.due }

func (m *Manager) poke() { poke.Wake(m.due) }

// Observe takes in the status of a pod: workloads go by it.
func (m *Manager) Observe(pod *v1.Pod, status v1.PodStatus) {
	if pod.Annotations[workload.AnnotationWorkload] == "" {
		return
	}
	m.mu.Lock()
	same := equality.Semantic.DeepEqual(m.statuses[pod.UID], status)
	m.statuses[pod.UID] = status
	m.mu.Unlock()
	if !same {
		m.poke()
	}
}

// mergeLocked finds out which objects win.
func (m *Manager) mergeLocked() {
	m.objects, m.clashes = map[string]manifest.Object{}, map[string]string{}
	for _, name := range precedence {
		for _, f := range m.files[name] {
			for _, o := range f.Objects {
				key := manifest.Key(o)
				if winner, taken := m.objects[key]; taken {
					m.clashes[name+" "+f.Path] = fmt.Sprintf("%s: metadata.name: %s is already defined in %s", f.Path, key, origin(winner))
					continue
				}
				m.objects[key] = o
			}
		}
	}
}

// origin says where an object is defined.
func origin(o manifest.Object) string {
	a := o.GetAnnotations()
	if a[manifest.AnnotationSource] == manifest.SourceAPI {
		return "the agent's own objects (crisp apply)"
	}
	return a[manifest.AnnotationFile]
}

// errorLocked is what is wrong with a file, or nil.
func (m *Manager) errorLocked(name string, f source.File) error {
	if f.Err != nil {
		return f.Err
	}
	if text, ok := m.clashes[name+" "+f.Path]; ok {
		return fmt.Errorf("%s", text)
	}
	return nil
}

func (m *Manager) problemsLocked() []error {
	var problems []error
	told := map[string]string{}
	for _, name := range precedence {
		for _, f := range m.files[name] {
			err := m.errorLocked(name, f)
			if err == nil {
				continue
			}
			at := name + " " + f.Path
			told[at] = err.Error()
			if m.told[at] != told[at] {
				problems = append(problems, err)
			}
		}
	}
	m.told = told
	return problems
}

// expandLocked makes the set of wanted pods of the objects.
func (m *Manager) expandLocked(now time.Time) []Change {
	pods := map[podsync.Key]*v1.Pod{}
	for _, o := range m.objects {
		if pod, ok := o.(*v1.Pod); ok {
			pods[podsync.KeyOf(pod)] = m.debuggedLocked(pod)
		}
	}
	var again time.Time
	expanded := map[string]workload.Plan{}
	for _, key := range slices.Sorted(maps.Keys(m.objects)) {
		o := m.objects[key]
		if !workload.Is(o) {
			continue
		}
		plan := workload.Expand(o, m.ofLocked(key), now)
		expanded[key] = plan
		if !plan.Again.IsZero() && (again.IsZero() || plan.Again.Before(again)) {
			again = plan.Again
		}
		for _, pod := range plan.Pods {
			key := podsync.KeyOf(pod)
			if other := pods[key]; other != nil {
				a := o.GetAnnotations()
				m.clashes[a[manifest.AnnotationSource]+" "+a[manifest.AnnotationFile]] = fmt.Sprintf(
					"%s: metadata.name: pod %s of %s is already defined in %s", a[manifest.AnnotationFile], key, manifest.Key(o), origin(other))
				continue
			}
			pods[key] = m.debuggedLocked(pod)
		}
	}
	changes := diff(m.pods, pods)
	m.pods, m.expanded = pods, expanded
	if m.readyLocked() {
		m.earlier = nil
	}
	m.forgetLocked()
	m.wakeLocked(again, now)
	return changes
}

// ofLocked returns the pods of a workload: those that are wanted and, until all
// sources have reported, those that an earlier agent had.
func (m *Manager) ofLocked(key string) []workload.Pod {
	var list []workload.Pod
	for _, pod := range slices.Concat(slices.Collect(maps.Values(m.pods)), m.earlier) {
		seen := func(p workload.Pod) bool { return p.Name == pod.Name }
		if pod.Annotations[workload.AnnotationWorkload] == key && !slices.ContainsFunc(list, seen) {
			list = append(list, workload.Pod{Pod: pod, Status: m.statuses[pod.UID]})
		}
	}
	return list
}

// forgetLocked drops the statuses of pods that are not wanted any more.
func (m *Manager) forgetLocked() {
	if !m.readyLocked() {
		return
	}
	wanted := map[types.UID]bool{}
	for _, pod := range m.pods {
		wanted[pod.UID] = true
	}
	maps.DeleteFunc(m.ephemeral, func(uid types.UID, _ []v1.EphemeralContainer) bool { return !wanted[uid] })
	maps.DeleteFunc(m.statuses, func(uid types.UID, _ v1.PodStatus) bool { return !wanted[uid] })
}

func (m *Manager) wakeLocked(at, now time.Time) {
	if m.alarm != nil {
		m.alarm.Stop()
	}
	if !at.IsZero() {
		m.alarm = time.AfterFunc(max(at.Sub(now), 0), m.poke)
	}
}
