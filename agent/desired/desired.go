// Package desired keeps the wanted state of this node. It merges the reports of the sources into
// one set of objects, expands workloads to pods, and passes the changes to the agent's loop.
//
// An object is identified by kind, namespace and name. Of two objects with the same identity,
// that of the first source wins (file, http, api), and within a source the first one; the other
// is reported as an error of its file.
//
// A pod that no source wants is not ended before every source has reported (Ready): a slow
// source may want it.
package desired

import (
	"maps"
	"reflect"
	"slices"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
)

// An Op says how the wanted pod under a key has changed.
type Op uint8

const (
	// Add: a pod is wanted from now on. Another pod that was wanted under its key ends
	// first.
	Add Op = iota + 1
	// Update: the same pod has another spec or other labels or annotations.
	Update
	// Reconcile: the same pod has changed, but nothing that its containers depend on.
	Reconcile
	// Delete: the pod must end, within its DeletionGracePeriodSeconds.
	Delete
	// Remove: no pod is wanted under the key any more.
	Remove
)

var ops = map[Op]string{Add: "ADD", Update: "UPDATE", Reconcile: "RECONCILE", Delete: "DELETE", Remove: "REMOVE"}

func (o Op) String() string { return ops[o] }

// A Change says how the wanted pod under Key has changed. Pod is read-only, and nil if none is
// wanted any more.
type Change struct {
	Op  Op
	Key podsync.Key
	Pod *v1.Pod
}

// Defer adds changes to those that wait for the runtime, and returns them. A pod that changes
// while its Add waits stays an Add; one that is removed meanwhile needs no change at all.
func Defer(deferred, changes []Change) []Change {
	for _, c := range changes {
		i := slices.IndexFunc(deferred, func(h Change) bool { return h.Key == c.Key })
		switch {
		case c.Op == Remove && i >= 0:
			deferred = slices.Delete(deferred, i, i+1)
		case c.Op == Remove:
		case i >= 0:
			deferred[i].Pod = c.Pod
		default:
			deferred = append(deferred, Change{Op: Add, Key: c.Key, Pod: c.Pod})
		}
	}
	return deferred
}

// diff returns the changes from the old set of pods to the new one, ordered by key.
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

// compare returns how a pod has changed; 0 if it has not.
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
