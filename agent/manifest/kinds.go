package manifest

import (
	"reflect"
	"strconv"

	"go.yaml.in/yaml/v3"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A kind is a kind of object that crisp supports.
type kind struct {
	name       string
	group      schema.GroupVersion
	namespaced bool
	typ        reflect.Type
	// complete sets defaults and makes the checks that the table of checks cannot express.
	complete func(*validator, Object, Options)
}

func kindFor[T any](name string, group schema.GroupVersion, namespaced bool, complete func(*validator, *T, Options)) *kind {
	return &kind{name, group, namespaced, reflect.TypeFor[T](), func(v *validator, o Object, options Options) {
		complete(v, any(o).(*T), options)
	}}
}

func (k *kind) new() Object { return reflect.New(k.typ).Interface().(Object) }

var kinds = []*kind{
	kindFor("Pod", v1.SchemeGroupVersion, true, completePod),
	kindFor("ConfigMap", v1.SchemeGroupVersion, true, completeConfigMap),
	kindFor("Secret", v1.SchemeGroupVersion, true, completeSecret),
	kindFor("PersistentVolumeClaim", v1.SchemeGroupVersion, true, func(*validator, *v1.PersistentVolumeClaim, Options) {}),
	kindFor("RuntimeClass", nodev1.SchemeGroupVersion, false, completeRuntimeClass),
	kindFor("Deployment", appsv1.SchemeGroupVersion, true, completeDeployment),
	kindFor("DaemonSet", appsv1.SchemeGroupVersion, true, completeDaemonSet),
	kindFor("Job", batchv1.SchemeGroupVersion, true, completeJob),
}

// notHere has the reasons why well-known kinds are rejected.
var notHere = map[string]string{
	"Service":               "not supported on a single node: use hostPort",
	"Ingress":               "not supported on a single node: use hostPort",
	"StatefulSet":           "not supported: use a Deployment; without maxSurge its pods keep their names",
	"ReplicaSet":            "not supported: use a Deployment",
	"ReplicationController": "not supported: use a Deployment",
	"CronJob":               "not supported: have a systemd timer apply a Job",
	"PersistentVolume":      "not supported: every claim is a directory of this node",
	"ServiceAccount":        "not supported: there are no service accounts without an API server",
}

// kind returns the document's kind and apiVersion, each "" if it is missing.
func (t *tree) kind() (kind, version string) {
	if t.node.Kind != yaml.MappingNode {
		return "", ""
	}
	text := func(key string) string {
		if n := child(t.node, key); n != nil {
			return n.Value
		}
		return ""
	}
	return text("kind"), text("apiVersion")
}

// kindOf returns the document's kind. It returns nil without an error for a Namespace, which the
// agent does not store.
func (t *tree) kindOf() (*kind, *Error) {
	if t.node.Kind != yaml.MappingNode {
		return nil, &Error{Line: t.line(t.node), Text: "not a Kubernetes object: apiVersion and kind are missing"}
	}
	name, version := t.kind()
	wrong := func(field, text string) (*kind, *Error) {
		return nil, &Error{Line: t.lineOf(field), Field: t.prefix + field, Text: text}
	}
	switch name {
	case "":
		return wrong("kind", "is missing")
	case "Namespace":
		return nil, nil // every namespace exists
	}
	for _, k := range kinds {
		switch {
		case k.name != name:
		case k.group.String() != version:
			return wrong("apiVersion", strconv.Quote(version)+": want "+k.group.String())
		default:
			return k, nil
		}
	}
	if text, ok := notHere[name]; ok {
		return wrong("kind", name+" is "+text)
	}
	return wrong("kind", name+" is not a kind that crisp knows")
}
