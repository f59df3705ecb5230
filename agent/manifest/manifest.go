// Package manifest turns the text of a manifest file into pods: it decodes,
// fills in the defaults of Kubernetes and validates. It reads no disk and calls
// nobody.
//
// Nothing in a manifest is dropped silently. A key that v1.Pod does not have is
// an error; so is one that it has and that crisp does not act upon (fields.go is
// the list). Every error says where:
//
//	web.yaml:12: spec.containers[0].livenessProbe: not supported yet
//
// The positions come from the YAML node tree, the values from the same
// YAML-to-JSON conversion that kubectl uses, so that both read a file alike.
package manifest

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// Options are what defaults and validation must know of the node.
type Options struct {
	// NodeName goes into spec.nodeName and the pod's UID. A manifest that names
	// another node is rejected.
	NodeName string
}

// The annotations that the kubelet sets on the pods of files, by its names.
const (
	AnnotationHash   = "kubernetes.io/config.hash"
	AnnotationSource = "kubernetes.io/config.source"
	AnnotationFile   = "io.crisp.config.file" // path of the manifest; ours
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

// Read decodes the documents of data, which came from the file called name. If
// anything in the file is wrong the error is Errors and no pod is returned: half
// a file is not what its author wrote.
func Read(name string, data []byte, o Options) ([]*v1.Pod, error) {
	var pods []*v1.Pod
	var errs Errors
	seen := map[string]int{} // namespace/name → line of its document
	for _, doc := range split(data) {
		pod, docErrs := decode(doc, o)
		for _, e := range docErrs {
			e.File = name
			errs = append(errs, e)
		}
		if len(docErrs) > 0 || pod == nil {
			continue
		}
		key := pod.Namespace + "/" + pod.Name
		if line, twice := seen[key]; twice {
			errs = append(errs, Error{name, doc.line, "metadata.name", fmt.Sprintf("pod %s is already defined at line %d", key, line)})
			continue
		}
		seen[key] = doc.line
		pod.Annotations[AnnotationFile] = name
		pods = append(pods, pod)
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return pods, nil
}
