package api

import (
	"maps"
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/workload"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A Kind is one that the API serves.
type Kind struct {
	Name, Plural, Singular string
	Short                  []string
	Group                  string // "v1" or "apps/v1"
	Namespaced             bool
	Writable               bool // the store takes it
}

// Path is where objects of the kind are: "/api/v1" or "/apis/apps/v1".
func (k Kind) Path() string {
	if strings.Contains(k.Group, "/") {
		return "/apis/" + k.Group
	}
	return "/api/" + k.Group
}

// object returns an empty object of a kind that is writable.
func (k Kind) object() any { return messages[k.Name]() }

// categories are what "kubectl get all" is about.
func (k Kind) categories() []string {
	if k.Name == "Pod" || k.Group == "apps/v1" || k.Group == "batch/v1" {
		return []string{"all"}
	}
	return nil
}

// Kinds are all kinds that the API serves.
var Kinds = []Kind{
	{"Pod", "pods", "pod", []string{"po"}, "v1", true, true},
	{"ConfigMap", "configmaps", "configmap", []string{"cm"}, "v1", true, true},
	{"Secret", "secrets", "secret", nil, "v1", true, true},
	{"PersistentVolumeClaim", "persistentvolumeclaims", "persistentvolumeclaim", []string{"pvc"}, "v1", true, true},
	{"Event", "events", "event", []string{"ev"}, "v1", true, false},
	{"Node", "nodes", "node", []string{"no"}, "v1", false, false},
	{"Namespace", "namespaces", "namespace", []string{"ns"}, "v1", false, false},
	{"RuntimeClass", "runtimeclasses", "runtimeclass", nil, "node.k8s.io/v1", false, true},
	{"Deployment", "deployments", "deployment", []string{"deploy"}, "apps/v1", true, true},
	{"DaemonSet", "daemonsets", "daemonset", []string{"ds"}, "apps/v1", true, true},
	{"Job", "jobs", "job", nil, "batch/v1", true, true},
}

// KindOf finds a kind by any of its names, as people write them.
func KindOf(word string) (Kind, bool) {
	word = strings.ToLower(word)
	for _, k := range Kinds {
		names := append([]string{strings.ToLower(k.Name), k.Plural, k.Singular}, k.Short...)
		for _, name := range names {
			if name == word {
				return k, true
			}
		}
	}
	return Kind{}, false
}

// list returns all objects of a kind, complete.
func (s *Server) list(kind string) []manifest.Object {
	var list []manifest.Object
	switch kind {
	case "Pod":
		return s.named()
	case "Event":
		for _, e := range s.o.Events.List() {
			list = append(list, &e)
		}
		return list
	case "Node":
		return []manifest.Object{s.o.Node.Node()}
	case "Namespace":
		return s.namespaces()
	}
	return s.o.Wanted.List(kind)
}

// named returns one pod of each name: clients tell objects apart by their names. While
// one replaces another, it is the one that is wanted, and waits.
func (s *Server) named() []manifest.Object {
	seen := map[string]bool{}
	return slices.DeleteFunc(s.pods(), func(o manifest.Object) bool {
		key := manifest.Key(o)
		again := seen[key]
		seen[key] = true
		return again
	})
}

// pods returns the wanted pods, and after them those that are being ended, with their
// statuses.
func (s *Server) pods() []manifest.Object {
	var list []manifest.Object
	seen := map[string]bool{}
	add := func(pod *v1.Pod, ending bool) {
		if seen[string(pod.UID)] {
			return
		}
		seen[string(pod.UID)] = true
		pod = pod.DeepCopy()
		pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
		if status := s.o.Status(pod.UID); status != nil {
			pod.Status = *status.DeepCopy()
		} else {
			pod.Status.Phase = v1.PodPending
		}
		// A file's pod has no such time, and one of a workload its workload's.
		if of := pod.Annotations[workload.AnnotationWorkload]; (pod.CreationTimestamp.IsZero() || of != "") && pod.Status.StartTime != nil {
			pod.CreationTimestamp = *pod.Status.StartTime
		}
		if ending && pod.DeletionTimestamp == nil {
			since := s.endingSince(pod.UID)
			pod.DeletionTimestamp = &since
		}
		list = append(list, pod)
	}
	for _, pod := range s.o.Wanted.Pods() {
		add(pod, false)
	}
	if s.o.Wanted.Ready() {
		for _, pod := range s.o.Accepted() {
			add(pod, true)
		}
	}
	s.forgetEnded(seen)
	return list
}

// endingSince is when a pod that nobody wants any more was first seen so: a time
// that moved with each list would tell watchers of a change each time.
func (s *Server) endingSince(uid types.UID) metav1.Time {
	s.endingMu.Lock()
	defer s.endingMu.Unlock()
	since, ok := s.ending[uid]
	if !ok {
		since = metav1.Now().Rfc3339Copy()
		s.ending[uid] = since
	}
	return since
}

// forgetEnded forgets the pods that are not there any more.
func (s *Server) forgetEnded(there map[string]bool) {
	s.endingMu.Lock()
	defer s.endingMu.Unlock()
	maps.DeleteFunc(s.ending, func(uid types.UID, _ metav1.Time) bool { return !there[string(uid)] })
}

func (s *Server) namespaces() []manifest.Object {
	var list []manifest.Object
	seen := map[string]bool{}
	for _, name := range append([]string{"default"}, s.usedNamespaces()...) {
		if seen[name] {
			continue
		}
		seen[name] = true
		list = append(list, namespace(name))
	}
	return list
}

func (s *Server) usedNamespaces() []string {
	var names []string
	for _, k := range Kinds {
		if k.Namespaced && k.Writable {
			for _, o := range s.o.Wanted.List(k.Name) {
				names = append(names, o.GetNamespace())
			}
		}
	}
	return names
}

// owner says why an object is not the API's to change or delete; nil if it is.
func owner(o manifest.Object) error {
	a := o.GetAnnotations()
	switch {
	case a[workload.AnnotationWorkload] != "":
		return forbidden(manifest.Key(o) + " is one of " + a[workload.AnnotationWorkload] + ": change or delete that")
	case a[manifest.AnnotationSource] == manifest.SourceFile:
		return forbidden(manifest.Key(o) + " is in the manifest " + a[manifest.AnnotationFile] + ": change or remove that file")
	case a[manifest.AnnotationSource] == manifest.SourceHTTP:
		return forbidden(manifest.Key(o) + " comes from " + a[manifest.AnnotationFile] + ": change it there")
	}
	return nil
}
