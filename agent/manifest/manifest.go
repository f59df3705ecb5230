// Package manifest turns the text of manifests into objects: it decodes, fills in
// the defaults of Kubernetes and validates. It reads no disk and calls nobody.
//
// Nothing in a manifest is dropped silently. A key that the kind does not have
// is an error; so is one that it has and that crisp does not act upon (fields.go
// is the list). Every error says where:
//
//	web.yaml:12: spec.containers[0].volumeDevices: needs block volumes, which crisp does not have
//
// The positions come from the YAML node tree, the values from the same
// YAML-to-JSON conversion that kubectl uses, so that both read a file alike.
package manifest

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// An Object is a decoded, complete and valid object: a *v1.Pod, *v1.ConfigMap,
// *v1.Secret, *v1.PersistentVolumeClaim, *nodev1.RuntimeClass,
// *appsv1.Deployment, *appsv1.DaemonSet or *batchv1.Job.
type Object interface {
	metav1.Object
	runtime.Object
}

// Options are what defaults and validation must know.
type Options struct {
	// NodeName goes into spec.nodeName and the UIDs. A manifest that names
	// another node is rejected. Empty: any will do.
	NodeName string
	// Source is what the objects' config.source annotation says; "" is
	// SourceFile.
	Source string
	// Unknown says what becomes of keys that a kind does not have.
	Unknown Unknown
}

// Unknown says what becomes of keys that a kind does not have.
type Unknown uint8

const (
	Strict Unknown = iota // they are errors
	Warn                  // they are warnings
	Ignore
)

// Where objects come from, in the kubelet's words.
const (
	SourceFile = "file"
	SourceHTTP = "http"
	SourceAPI  = "api"
)

// The annotations that the kubelet sets on the pods of files, by its names, and
// ours.
const (
	AnnotationHash   = "kubernetes.io/config.hash"
	AnnotationSource = "kubernetes.io/config.source"
	AnnotationFile   = "io.crisp.config.file" // path or URL of the manifest
)

// An Error is one thing that is wrong with a manifest.
type Error struct {
	File  string
	Line  int    // from 1; 0 if the file as a whole is meant
	Field string // "" if no field is meant
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
	return b.String()
}

// Errors are all that is wrong with a file, in the order of its lines.
type Errors []Error

// Error is one line for each.
func (es Errors) Error() string {
	lines := make([]string, len(es))
	for i, e := range es {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// Read decodes the documents of data, which came from the file called name.
// warnings are what it is accepted in spite of. If anything in the file is wrong
// the error is Errors and no object is returned: half a file is not what its
// author wrote.
func Read(name string, data []byte, o Options) (objects []Object, warnings Errors, err error) {
	r := reader{Options: o, name: name, seen: map[string]int{}}
	if r.Source == "" {
		r.Source = SourceFile
	}
	for _, doc := range split(data) {
		r.document(doc)
	}
	if len(r.errs) > 0 {
		return nil, r.warnings, r.errs
	}
	return r.objects, r.warnings, nil
}

// KindOf returns the kind of an object that Read has returned.
func KindOf(o Object) string { return o.GetObjectKind().GroupVersionKind().Kind }
