// Package event keeps what has happened to the pods of this node, as Kubernetes'
// events, without an API server: in memory and in a file, so that "crisp events"
// tells of the time before the agent was killed too.
//
// What happens again is counted and not listed again: two events are the same if
// their object, type, reason and message are. The oldest are dropped when there
// are more than the Store holds.
//
// The file has one JSON object a line, a v1.Event; a later line of the same name
// replaces an earlier one. It is appended to and not synced, since an event that
// a power cut takes is worth no disk write; it survives SIGKILL. When it has grown
// to twice what it must hold it is written anew.
package event

import (
	v1 "k8s.io/api/core/v1"
)

// A Recorder takes events. Its methods do not block and may be called from any
// goroutine. kind is v1.EventTypeNormal or v1.EventTypeWarning; reason is one
// CamelCase word, the kubelet's where it has one; message is a sentence, of which a
// Store keeps 1024 bytes.
type Recorder interface {
	Event(on v1.ObjectReference, kind, reason, message string)
}

// Discard is a Recorder that forgets.
var Discard Recorder = discard{}

type discard struct{}

func (discard) Event(v1.ObjectReference, string, string, string) {}

// Pod refers to a pod.
func Pod(pod *v1.Pod) v1.ObjectReference {
	return v1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
}

// Container refers to a container of a pod. list is the field that has it:
// "containers", "initContainers" or "ephemeralContainers".
func Container(pod *v1.Pod, list, name string) v1.ObjectReference {
	ref := Pod(pod)
	ref.FieldPath = "spec." + list + "{" + name + "}"
	return ref
}

// Node refers to the node.
func Node(name string) v1.ObjectReference {
	return v1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: name}
}
