package api

import (
	"strings"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/apiserver/watchcache"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// sources provides the objects of the API: a watchcache.Source.
type sources struct {
	o *Options
}

// Items returns all objects of a kind.
func (s *sources) Items(kind string) []watchcache.Item {
	var items []watchcache.Item
	switch kind {
	case "Pod":
		// Clients identify objects by name. While one pod replaces another of the same name, only
		// the wanted one is listed; it waits.
		seen := map[string]bool{}
		for _, p := range s.pods() {
			if item := p.item(); !seen[item.Key] {
				seen[item.Key] = true
				items = append(items, item)
			}
		}
	case "Event":
		for _, e := range s.o.Events.List() {
			items = append(items, itemOf(e))
		}
	case "Node":
		items = append(items, itemOf(s.o.Node.Node()))
	case "Namespace":
		return s.namespaces()
	default:
		for _, o := range s.o.Wanted.List(kind) {
			items = append(items, s.item(o))
		}
	}
	return items
}

// Item returns one object.
func (s *sources) Item(kind, key string) (watchcache.Item, bool) {
	switch kind {
	case "Pod":
		return s.pod(key)
	case "Event", "Node", "Namespace": // rarely requested by name
		for _, item := range s.Items(kind) {
			if item.Key == key {
				return item, true
			}
		}
		return watchcache.Item{}, false
	}
	o := s.o.Wanted.Object(key)
	if o == nil {
		return watchcache.Item{}, false
	}
	return s.item(o), true
}

// item is itemOf, for a CronJob with its status, which is in its Jobs.
func (s *sources) item(o manifest.Object) watchcache.Item {
	c, ok := o.(*batchv1.CronJob)
	if !ok {
		return itemOf(o)
	}
	with := manifest.WithStatus(c, manifest.JobsByCronJob(s.o.Wanted.List("Job"))[manifest.Key(o)])
	return watchcache.Item{Key: manifest.Key(o), Parts: [3]any{o, with.Status.String()}, Make: func() manifest.Object { return with }}
}

func itemOf(o manifest.Object) watchcache.Item {
	return watchcache.Item{Key: manifest.Key(o), Parts: [3]any{o}, Make: func() manifest.Object { return o.DeepCopyObject().(manifest.Object) }}
}

// A shownPod has the parts of a pod as clients see it.
type shownPod struct {
	pod    *v1.Pod
	status *v1.PodStatus // nil if unknown
	ending metav1.Time   // when its end was recorded; zero if it was not
}

func (p shownPod) item() watchcache.Item {
	return watchcache.Item{Key: "pod " + podsync.KeyOf(p.pod).String(), Parts: [3]any{p.pod, p.status, p.ending.Time}, Make: p.object}
}

func (p shownPod) object() manifest.Object {
	pod := p.pod.DeepCopy()
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	if p.status != nil {
		pod.Status = *p.status.DeepCopy()
	} else {
		pod.Status.Phase = v1.PodPending
	}
	// A pod from a file has no creation time, and a workload's pod has that of its workload.
	if of := pod.Annotations[manifest.AnnotationWorkload]; (pod.CreationTimestamp.IsZero() || of != "") && pod.Status.StartTime != nil {
		pod.CreationTimestamp = *pod.Status.StartTime
	}
	if !p.ending.IsZero() && pod.DeletionTimestamp == nil {
		pod.DeletionTimestamp = &p.ending
	}
	return pod
}

// currentStatus returns the status, or that of a pending pod if it is unknown.
func (p shownPod) currentStatus() v1.PodStatus {
	if p.status == nil {
		return v1.PodStatus{Phase: v1.PodPending}
	}
	return *p.status
}

// pods returns the wanted pods, then those being ended.
func (s *sources) pods() []shownPod {
	var list []shownPod
	seen := map[types.UID]bool{}
	for _, pod := range s.o.Wanted.Pods() {
		seen[pod.UID] = true
		list = append(list, shownPod{pod: pod, status: s.o.Statuses.Last(pod)})
	}
	if s.o.Wanted.Ready() {
		for _, pod := range s.o.Files.Accepted() {
			if !seen[pod.UID] {
				seen[pod.UID] = true
				list = append(list, s.endingPod(pod))
			}
		}
	}
	return list
}

// pod returns the pod that clients see under a key.
func (s *sources) pod(key string) (watchcache.Item, bool) {
	namespace, name, _ := strings.Cut(strings.TrimPrefix(key, "pod "), "/")
	at := podsync.Key{Namespace: namespace, Name: name}
	if pod := s.o.Wanted.Pod(at); pod != nil {
		return shownPod{pod: pod, status: s.o.Statuses.Last(pod)}.item(), true
	}
	if s.o.Wanted.Ready() {
		for _, pod := range s.o.Files.Accepted() {
			if podsync.KeyOf(pod) == at {
				return s.endingPod(pod).item(), true
			}
		}
	}
	return watchcache.Item{}, false
}

// endingPod returns a pod that is no longer wanted. It is shown as ending once the agent has
// recorded that: from then on the pod ends even if the agent is killed and the pod is added again.
func (s *sources) endingPod(pod *v1.Pod) shownPod {
	return shownPod{pod, s.o.Statuses.Get(pod.UID), metav1.NewTime(s.o.Files.EndingSince(pod.UID)).Rfc3339Copy()}
}

// namespaces returns "default" and the namespaces of all objects.
func (s *sources) namespaces() []watchcache.Item {
	names := []string{"default"}
	for _, k := range Kinds {
		if k.Namespaced && k.Writable {
			for _, o := range s.o.Wanted.List(k.Name) {
				names = append(names, o.GetNamespace())
			}
		}
	}
	var items []watchcache.Item
	seen := map[string]bool{}
	for _, name := range names {
		if !seen[name] {
			seen[name] = true
			items = append(items, watchcache.Item{Key: "namespace " + name, Parts: [3]any{name}, Make: func() manifest.Object { return Namespace(name) }})
		}
	}
	return items
}

// Namespace returns an active namespace. Every namespace exists.
func Namespace(name string) manifest.Object {
	n := &v1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.Phase = v1.NamespaceActive
	return n
}
