package source

import (
	"cmp"
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
	"github.com/crisp-cri/crisp/internal/periodic"
	"github.com/crisp-cri/crisp/internal/poke"
)

// precedence is the order of the sources: the first one wins.
var precedence = []string{manifest.SourceFile, manifest.SourceHTTP, manifest.SourceAPI}

// A Manager keeps the wanted state of this node: it merges the reports of the sources into one set
// of objects, has an Expander make the pods of workloads, and tells how the wanted pods have
// changed. Only the loop may call Update and Reconcile; all other methods are safe for concurrent
// use.
//
// An object is identified by kind, namespace and name. Of two objects with the same identity, that
// of the first source wins (file, http, api), and within a source the first one; the other is
// reported as an error of its file.
//
// A pod that no source wants is not ended before every source has reported (Ready): a slow source
// may want it.
type Manager struct {
	expand Expander
	due    chan struct{} // of capacity 1

	mu        sync.Mutex
	sources   []string                              // all that must report; guarded by mu, like all fields below
	files     map[string][]File                     // by source
	objects   map[string]manifest.Object            // the winners, by manifest.Key
	clashes   map[string]error                      // source and path of a file → why an object of it is not there
	reported  map[string]string                     // source and path of a file → the last error reported
	pods      map[podsync.Key]*v1.Pod               // the wanted pods
	earlier   []*v1.Pod                             // the workloads' pods that an earlier agent accepted; nil once Ready
	ephemeral map[types.UID][]v1.EphemeralContainer // those added to running pods
	statuses  map[types.UID]v1.PodStatus            // of the workloads' pods
	expanded  map[string]Plan                       // by manifest.Key
	alarm     *time.Timer                           // wakes the loop when a workload must be planned again
}

// NewManager returns a Manager that wants nothing yet. It is Ready when all of sources have reported.
// Without an Expander, workloads are rejected.
func NewManager(sources []string, expand Expander) *Manager {
	return &Manager{
		sources: sources, expand: expand, due: make(chan struct{}, 1),
		files: map[string][]File{}, objects: map[string]manifest.Object{}, clashes: map[string]error{}, reported: map[string]string{},
		pods: map[podsync.Key]*v1.Pod{}, statuses: map[types.UID]v1.PodStatus{}, ephemeral: map[types.UID][]v1.EphemeralContainer{}, expanded: map[string]Plan{},
	}
}

// Expect adds a source that must report before the Manager is Ready.
func (m *Manager) Expect(source string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sources = append(m.sources, source)
}

// Resume takes over the pods that an earlier agent has accepted, with their statuses, so
// that workloads continue with them.
func (m *Manager) Resume(accepted []*v1.Pod, status func(*v1.Pod) *v1.PodStatus) {
	for _, pod := range accepted {
		if pod.Annotations[manifest.AnnotationWorkload] == "" {
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

// Ready reports whether all sources have reported. Until then no pod ends for being unwanted.
func (m *Manager) Ready() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.readyLocked()
}

// Local reports whether all sources except http have reported. They do so soon after the start,
// while the http server may be down for a long time.
func (m *Manager) Local() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.reportedLocked(func(name string) bool { return name != manifest.SourceHTTP })
}

func (m *Manager) readyLocked() bool { return m.reportedLocked(func(string) bool { return true }) }

func (m *Manager) reportedLocked(of func(name string) bool) bool {
	return !slices.ContainsFunc(m.sources, func(s string) bool { _, reported := m.files[s]; return !reported && of(s) })
}

func (m *Manager) Pod(key podsync.Key) *v1.Pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pods[key]
}

// Pods returns all wanted pods, ordered by key.
func (m *Manager) Pods() []*v1.Pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.SortedFunc(maps.Values(m.pods), func(a, b *v1.Pod) int { return podsync.KeyOf(a).Compare(podsync.KeyOf(b)) })
}

// Update takes in the report of a source. refers tells whether an object changed that pods may
// refer to; problems are the errors of files that were not returned before.
func (m *Manager) Update(u Update) (changes []Change, refers bool, problems []error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.files[u.Source] = u.Files
	old := m.objects
	m.mergeLocked()
	refers = refer(old, m.objects)
	changes = m.expandLocked(time.Now())
	return changes, refers, m.problemsLocked()
}

// refer reports whether any object but a pod has changed. It compares pointers: sources keep
// unchanged objects.
func refer(old, now map[string]manifest.Object) bool {
	isPod := func(key string, _ manifest.Object) bool { return strings.HasPrefix(key, "pod ") }
	old, now = maps.Clone(old), maps.Clone(now)
	maps.DeleteFunc(old, isPod)
	maps.DeleteFunc(now, isPod)
	return !maps.Equal(old, now)
}

// SetEphemeral sets the ephemeral containers of a pod. Manifests cannot have any.
func (m *Manager) SetEphemeral(uid types.UID, containers []v1.EphemeralContainer) {
	m.mu.Lock()
	m.ephemeral[uid] = containers
	m.mu.Unlock()
	m.poke()
}

// withEphemeralLocked returns the pod with its ephemeral containers. Each of them, which stay as long
// as the pod, is a change of its spec.
func (m *Manager) withEphemeralLocked(pod *v1.Pod) *v1.Pod {
	containers, ok := m.ephemeral[pod.UID]
	if !ok {
		return pod
	}
	pod = pod.DeepCopy()
	pod.Spec.EphemeralContainers = containers
	pod.Generation += int64(len(containers))
	return pod
}

// Reconcile plans the workloads again and returns the changes. The loop calls it when Due
// receives a value.
func (m *Manager) Reconcile() []Change {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.expandLocked(time.Now())
}

// Due receives a value when Reconcile should run.
func (m *Manager) Due() <-chan struct{} { return m.due }

func (m *Manager) poke() { poke.Wake(m.due) }

// Observe takes in the status of a pod, on which the plan of its workload depends.
func (m *Manager) Observe(pod *v1.Pod, status v1.PodStatus) {
	if pod.Annotations[manifest.AnnotationWorkload] == "" {
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

func (m *Manager) mergeLocked() {
	m.objects, m.clashes = map[string]manifest.Object{}, map[string]error{}
	for _, name := range precedence {
		for _, f := range m.files[name] {
			for _, o := range f.Objects {
				key := manifest.Key(o)
				if m.expand == nil && manifest.IsWorkload(o) {
					m.clashes[name+" "+f.Path] = fmt.Errorf("%s: kind: %s is a workload: this agent has no controllers, and runs pods only", f.Path, key)
					continue
				}
				if winner, taken := m.objects[key]; taken {
					m.clashes[name+" "+f.Path] = fmt.Errorf("%s: metadata.name: %s is already defined in %s", f.Path, key, origin(winner))
					continue
				}
				m.objects[key] = o
			}
		}
	}
}

func origin(o manifest.Object) string {
	a := o.GetAnnotations()
	if a[manifest.AnnotationSource] == manifest.SourceAPI {
		return "the agent's own objects (crisp apply)"
	}
	return a[manifest.AnnotationFile]
}

func (m *Manager) errorLocked(name string, f File) error {
	return cmp.Or(f.Err, m.clashes[name+" "+f.Path])
}

func (m *Manager) problemsLocked() []error {
	var problems []error
	reported := map[string]string{}
	for _, name := range precedence {
		for _, f := range m.files[name] {
			err := m.errorLocked(name, f)
			if err == nil {
				continue
			}
			at := name + " " + f.Path
			reported[at] = err.Error()
			if m.reported[at] != reported[at] {
				problems = append(problems, err)
			}
		}
	}
	m.reported = reported
	return problems
}

func (m *Manager) expandLocked(now time.Time) []Change {
	pods := map[podsync.Key]*v1.Pod{}
	for _, o := range m.objects {
		if pod, ok := o.(*v1.Pod); ok {
			pods[podsync.KeyOf(pod)] = m.withEphemeralLocked(pod)
		}
	}
	var again time.Time
	expanded, of := map[string]Plan{}, m.byWorkloadLocked()
	for _, key := range slices.Sorted(maps.Keys(m.objects)) {
		o := m.objects[key]
		if !manifest.IsWorkload(o) {
			continue
		}
		plan := m.expand(o, of[key], now)
		expanded[key] = plan
		again = podsync.Earliest(again, plan.Again)
		for _, pod := range plan.Pods {
			key := podsync.KeyOf(pod)
			if other := pods[key]; other != nil {
				a := o.GetAnnotations()
				m.clashes[a[manifest.AnnotationSource]+" "+a[manifest.AnnotationFile]] = fmt.Errorf(
					"%s: metadata.name: pod %s of %s is already defined in %s", a[manifest.AnnotationFile], key, manifest.Key(o), origin(other))
				continue
			}
			pods[key] = m.withEphemeralLocked(pod)
		}
	}
	changes := diff(m.pods, pods)
	m.pods, m.expanded = pods, expanded
	if m.readyLocked() {
		m.earlier = nil
	}
	m.forgetLocked()
	if m.alarm != nil {
		m.alarm.Stop()
	}
	if !again.IsZero() {
		m.alarm = time.AfterFunc(periodic.Until(again), m.poke)
	}
	return changes
}

// byWorkloadLocked returns the pods of all workloads, by manifest.Key: the wanted ones and, until
// all sources have reported, those of an earlier agent.
func (m *Manager) byWorkloadLocked() map[string][]WorkloadPod {
	of, seen := map[string][]WorkloadPod{}, map[[2]string]bool{}
	for _, pod := range slices.Concat(slices.Collect(maps.Values(m.pods)), m.earlier) {
		key := pod.Annotations[manifest.AnnotationWorkload]
		if at := [2]string{key, pod.Name}; key != "" && !seen[at] {
			seen[at] = true
			of[key] = append(of[key], WorkloadPod{Pod: pod, Status: m.statuses[pod.UID]})
		}
	}
	return of
}

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
