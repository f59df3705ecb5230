// Package event keeps the Kubernetes events of this node without an API server: in memory
// and in a file, so that "crisp events" also shows those of an agent that was killed.
//
// An event that happens again is counted, not listed again: two events are the same if they
// have the same object, type, reason and message. When a Store has too many events it drops
// the least recent ones.
//
// Each line of the file is a v1.Event in JSON, which replaces earlier lines of the same event.
// Lines are appended without a sync: they survive SIGKILL, and an event that a power cut
// takes is not worth a disk write. The file is rewritten when it has twice as many lines as
// a Store may hold events.
package event

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// A Recorder records events. It does not block and is safe for concurrent use. kind is
// v1.EventTypeNormal or v1.EventTypeWarning. reason is a CamelCase word, that of the kubelet
// if it has one. message is a sentence, of which a Store keeps at most 1024 bytes.
type Recorder interface {
	Event(on v1.ObjectReference, kind, reason, message string)
}

// Discard is a Recorder that drops all events.
var Discard Recorder = discard{}

type discard struct{}

func (discard) Event(v1.ObjectReference, string, string, string) {}

// Pod returns a reference to a pod.
func Pod(pod *v1.Pod) v1.ObjectReference {
	return v1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
}

// Container returns a reference to a container of a pod, be it an init, a regular or an
// ephemeral one.
func Container(pod *v1.Pod, name string) v1.ObjectReference {
	list := "containers"
	switch {
	case slices.ContainsFunc(pod.Spec.InitContainers, func(c v1.Container) bool { return c.Name == name }):
		list = "initContainers"
	case slices.ContainsFunc(pod.Spec.EphemeralContainers, func(c v1.EphemeralContainer) bool { return c.Name == name }):
		list = "ephemeralContainers"
	}
	ref := Pod(pod)
	ref.FieldPath = "spec." + list + "{" + name + "}"
	return ref
}

// Node returns a reference to the node.
func Node(name string) v1.ObjectReference {
	return v1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: name}
}
