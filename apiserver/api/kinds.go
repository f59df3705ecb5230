package api

import (
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/agent/manifest"
)

// A Kind is a kind of object that the API serves.
type Kind struct {
	Name, Plural, Singular string
	Short                  []string
	Group                  string // "v1" or "apps/v1"
	Namespaced             bool
	Writable               bool // the store accepts it
}

// Path is the path below which objects of the kind are: "/api/v1" or "/apis/apps/v1".
func (k Kind) Path() string {
	if strings.Contains(k.Group, "/") {
		return "/apis/" + k.Group
	}
	return "/api/" + k.Group
}

// Kinds are all kinds that the API serves.
var Kinds = []Kind{
	{"Pod", "pods", "pod", []string{"po"}, "v1", true, true},
	{"ConfigMap", "configmaps", "configmap", []string{"cm"}, "v1", true, true},
	{"Secret", "secrets", "secret", nil, "v1", true, true},
	{"PersistentVolumeClaim", "persistentvolumeclaims", "persistentvolumeclaim", []string{"pvc"}, "v1", true, true},
	{"Service", "services", "service", []string{"svc"}, "v1", true, true},
	{"Event", "events", "event", []string{"ev"}, "v1", true, false},
	{"Node", "nodes", "node", []string{"no"}, "v1", false, false},
	{"Namespace", "namespaces", "namespace", []string{"ns"}, "v1", false, false},
	{"RuntimeClass", "runtimeclasses", "runtimeclass", nil, "node.k8s.io/v1", false, true},
	{"Deployment", "deployments", "deployment", []string{"deploy"}, "apps/v1", true, true},
	{"StatefulSet", "statefulsets", "statefulset", []string{"sts"}, "apps/v1", true, true},
	{"DaemonSet", "daemonsets", "daemonset", []string{"ds"}, "apps/v1", true, true},
	{"CronJob", "cronjobs", "cronjob", []string{"cj"}, "batch/v1", true, true},
	{"Job", "jobs", "job", nil, "batch/v1", true, true},
}

// KindOf finds a kind by any of its names: singular, plural or short, in any case.
func KindOf(word string) (Kind, bool) {
	word = strings.ToLower(word)
	for _, k := range Kinds {
		if slices.Contains(append([]string{strings.ToLower(k.Name), k.Plural, k.Singular}, k.Short...), word) {
			return k, true
		}
	}
	return Kind{}, false
}

// Changeable returns an error if the API must not change or delete an object, and nil otherwise.
func Changeable(o manifest.Object) error {
	a := o.GetAnnotations()
	switch {
	case a[manifest.AnnotationWorkload] != "":
		return Forbidden(manifest.Key(o) + " is one of " + a[manifest.AnnotationWorkload] + ": change or delete that")
	case a[manifest.AnnotationSource] == manifest.SourceFile:
		return Forbidden(manifest.Key(o) + " is in the manifest " + a[manifest.AnnotationFile] + ": change or remove that file")
	case a[manifest.AnnotationSource] == manifest.SourceHTTP:
		return Forbidden(manifest.Key(o) + " comes from " + a[manifest.AnnotationFile] + ": change it there")
	}
	return nil
}
