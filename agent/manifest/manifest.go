// Package manifest converts the text of manifests to objects: it decodes them, sets Kubernetes'
// defaults and validates. It does no I/O.
//
// A key that the kind does not have is an error, unless Options.Unknown accepts such keys. A field
// that crisp does not support is always an error. fields.go lists the supported fields, and those
// that are accepted without effect because they have no meaning on a single node. Every error has
// its position:
//
//	web.yaml:12: spec.containers[0].volumeDevices: needs block volumes, which crisp does not have
//
// Positions come from the YAML node tree. Values come from kubectl's YAML-to-JSON conversion, so
// that both programs read a file in the same way.
package manifest

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// An Object is a decoded, complete and valid object: a *v1.Pod, *v1.ConfigMap,
// *v1.Secret, *v1.PersistentVolumeClaim, *nodev1.RuntimeClass,
// *v1.Service, *appsv1.Deployment, *appsv1.StatefulSet, *appsv1.DaemonSet, *batchv1.CronJob or
// *batchv1.Job.
type Object interface {
	metav1.Object
	runtime.Object
}

// MaxSize is how many bytes a manifest may have.
const MaxSize = 4 << 20

type Options struct {
	// NodeName is the default of spec.nodeName and part of every UID. A manifest that names another
	// node is rejected. "" accepts any node.
	NodeName string
	// Source is the value of the config.source annotation; "" is SourceFile.
	Source  string
	Unknown Unknown
	// Accepted says that the content was accepted before, perhaps by an earlier release. As in
	// Kubernetes, which validates only new or changed objects, it then stays valid: only the checks
	// that the agent relies on, or that protect the node, give errors; the others give warnings.
	// Unsupported fields have no effect.
	Accepted bool
}

// Unknown is how Read treats keys that the kind does not have.
type Unknown uint8

const (
	Strict Unknown = iota // they are errors
	Warn                  // they are warnings
	Ignore                // they are dropped
)

// The sources of objects, named as in the kubelet.
const (
	SourceFile = "file"
	SourceHTTP = "http"
	SourceAPI  = "api"
)

// The annotations that the kubelet sets on static pods, and those of crisp.
const (
	AnnotationHash     = "kubernetes.io/config.hash"
	AnnotationSource   = "kubernetes.io/config.source"
	AnnotationFile     = "io.crisp.config.file" // the name passed to Read: path or URL of the manifest
	AnnotationWorkload = "io.crisp.workload"    // the Key of the workload of a pod: "deployment default/web"
	// AnnotationRevision is the hash of the pod's template; for the pod of a Job, the UID and the hash
	// of the Job.
	AnnotationRevision   = "io.crisp.workload.revision"
	AnnotationAutoUpdate = "image.crisp.io/auto-update" // set by users: see AutoUpdated
)

type Error struct {
	File  string
	Line  int    // from 1; 0 means the whole file
	Field string // "" means no particular field
	Text  string
}

func (e Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d", e.Line)
	}
	b.WriteString(": ")
	if e.Field != "" {
		b.WriteString(e.Field + ": ")
	}
	b.WriteString(e.Text)
	return oneLine(b.String())
}

// oneLine returns s with its control characters escaped. Keys and values of an untrusted manifest
// may be printed on terminals.
func oneLine(s string) string {
	if !strings.ContainsFunc(s, unicode.IsControl) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if unicode.IsControl(r) {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// Errors are the errors or the warnings of a file, in the order of its lines.
type Errors []Error

// Error has one line for each error.
func (es Errors) Error() string {
	lines := make([]string, len(es))
	for i, e := range es {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// Read decodes the documents in data, the content of the file name. If anything is wrong, the error
// is of type Errors and Read returns no object, because part of a file is not what its author
// wrote. Warnings are about what Options.Unknown and Options.Accepted let pass.
func Read(name string, data []byte, o Options) (objects []Object, warnings Errors, err error) {
	r := reader{o: o, name: name, seen: map[string]int{}}
	if r.o.Source == "" {
		r.o.Source = SourceFile
	}
	if len(data) > MaxSize {
		return nil, nil, Errors{{File: name, Text: fmt.Sprintf("%d bytes, more than a manifest may have (%d)", len(data), MaxSize)}}
	}
	for _, doc := range split(data) {
		r.document(doc)
	}
	if len(r.errs) > 0 {
		return nil, r.warnings, r.errs
	}
	return r.objects, r.warnings, nil
}

func KindOf(o Object) string { return o.GetObjectKind().GroupVersionKind().Kind }

// IsWorkload reports whether o is an object of which pods are made.
func IsWorkload(o Object) bool {
	switch o.(type) {
	case *appsv1.Deployment, *appsv1.StatefulSet, *appsv1.DaemonSet, *batchv1.Job:
		return true
	}
	return false
}

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
	kindFor("Pod", v1.SchemeGroupVersion, true, func(v *validator, pod *v1.Pod, o Options) {
		setDefaults(pod, o)
		v.autoUpdate(pod)
	}),
	kindFor("ConfigMap", v1.SchemeGroupVersion, true, completeConfigMap),
	kindFor("Secret", v1.SchemeGroupVersion, true, completeSecret),
	kindFor("PersistentVolumeClaim", v1.SchemeGroupVersion, true, func(*validator, *v1.PersistentVolumeClaim, Options) {}),
	kindFor("RuntimeClass", nodev1.SchemeGroupVersion, false, completeRuntimeClass),
	kindFor("Service", v1.SchemeGroupVersion, true, completeService),
	kindFor("Deployment", appsv1.SchemeGroupVersion, true, completeDeployment),
	kindFor("StatefulSet", appsv1.SchemeGroupVersion, true, completeStatefulSet),
	kindFor("DaemonSet", appsv1.SchemeGroupVersion, true, completeDaemonSet),
	kindFor("CronJob", batchv1.SchemeGroupVersion, true, completeCronJob),
	kindFor("Job", batchv1.SchemeGroupVersion, true, completeJob),
}

// notHere has the reasons why well-known kinds are rejected.
var notHere = map[string]string{
	"ReplicaSet":            "not supported: use a Deployment",
	"ReplicationController": "not supported: use a Deployment",
	"PersistentVolume":      "not supported: every claim is a directory of this node",
}

// noRBAC is why kinds of Kubernetes' authorization are left out.
const noRBAC = "pods have no API server to be let in to"

// leftOut has the kinds that are left out of a file with a warning, and why: the pods beside them run
// as well without.
var leftOut = map[string]string{
	"Ingress":                 "nothing routes HTTP here; hostPort publishes a port",
	"NetworkPolicy":           "no traffic is filtered",
	"PodDisruptionBudget":     "nothing drains a single node",
	"HorizontalPodAutoscaler": "a single node is not scaled",
	"StorageClass":            "every claim is a directory of this node",
	"ServiceAccount":          noRBAC,
	"Role":                    noRBAC,
	"RoleBinding":             noRBAC,
	"ClusterRole":             noRBAC,
	"ClusterRoleBinding":      noRBAC,
}

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
// agent does not store, and for what is left out.
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
	if leftOut[name] != "" {
		return nil, nil
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
