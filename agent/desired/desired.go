// Package desired keeps what this node is to run. It merges what the sources
// report into one set of objects, expands workloads to their pods, and says what
// has changed for the loop that runs pods.
//
// An object is known by kind, namespace and name. Of two with the same, that of
// the source that comes first wins (file, http, api), within a source the one
// that is listed first; the other is told as an error of its file.
//
// Nothing is ended for not being wanted before every source has reported
// (Ready): what a source that is slow today wants may be running.
package desired

import (
	"maps"
	"reflect"
	"slices"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
)

// An Op says what has become of a pod.
type Op uint8

const (
	// Add: it is wanted from now on. If another pod was wanted under its key,
	// that one ends first.
	Add Op = iota + 1
	// Update: it is the same pod with another spec, labels or annotations.
	Update
	// Reconcile: it is the same pod, and nothing changed that it runs by.
	Reconcile
	// Delete: it is to end, within its DeletionGracePeriodSeconds.
	Delete
	// Remove: it is not wanted any more.
	Remove
)

var ops = map[Op]string{Add: "ADD", Update: "UPDATE", Reconcile: "RECONCILE", Delete: "DELETE", Remove: "REMOVE"}

func (o Op) String() string { return ops[o] }

// A Change is what has become of the pod under Key. Pod is nil if none is wanted
// any more. It is nobody's to modify.
type Change struct {
	Op  Op
	Key podsync.Key
	Pod *v1.Pod
}

// diff compares what was wanted with what is now, in the order of keys.
func diff(old, now map[podsync.Key]*v1.Pod) []Change {
	var changes []Change
	for key, pod := range now {
		if op := compare(old[key], pod); op != 0 {
			changes = append(changes, Change{op, key, pod})
		}
	}
	for key := range old {
		if now[key] == nil {
			changes = append(changes, Change{Remove, key, nil})
		}
	}
	slices.SortFunc(changes, func(a, b Change) int { return a.Key.Compare(b.Key) })
	return changes
}

// compare returns what makes now of old, 0 if they are the same.
func compare(old, now *v1.Pod) Op {
	switch {
	case old == nil || old.UID != now.UID:
		return Add
	case old == now:
		return 0
	case now.DeletionTimestamp != nil:
		if old.DeletionTimestamp != nil && reflect.DeepEqual(old.DeletionGracePeriodSeconds, now.DeletionGracePeriodSeconds) {
			return 0
		}
		return Delete
	case !reflect.DeepEqual(&old.Spec, &now.Spec) || !maps.Equal(old.Labels, now.Labels) || !maps.Equal(old.Annotations, now.Annotations):
		return Update
	case !reflect.DeepEqual(old, now):
		return Reconcile
	}
	return 0
}
