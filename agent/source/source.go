// Package source knows which pods are wanted. A Source has manifests: a directory, a URL, or what
// embeds the agent. A Manager merges the sources to the wanted pods.
//
// After a change a source sends its
// complete content. While it cannot read the directory or the URL it sends nothing, so that a
// directory that is briefly unmounted ends no pods.
//
// A bad file has the objects of its last good version. A copy of that is on disk: neither a typing
// error, nor a server that is down while the agent restarts, ends a pod. A file that is being
// written is read once it is complete. A file that became empty is bad.
package source

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
)

// A Source sends everything that it has to updates, and again at each change, until ctx ends.
type Source interface {
	Run(ctx context.Context, updates chan<- Update)
}

// A File is the current state of a manifest.
type File struct {
	Path     string // or URL
	Objects  []manifest.Object
	Warnings manifest.Errors
	Err      error // why it could not be read or is bad; Objects are those of its last good version
}

// An Update is the complete content of a source.
type Update struct {
	Source string // "file", "http" or "api"
	Files  []File // by Path
}

// Decode turns a file's content into objects, as manifest.Read does. accepted is
// manifest.Options.Accepted.
type Decode func(path string, data []byte, accepted bool) ([]manifest.Object, manifest.Errors, error)

// An Expander makes the pods of a workload (a Deployment, StatefulSet, DaemonSet or Job). pods are all pods with
// its manifest.AnnotationWorkload, of any revision.
type Expander func(workload manifest.Object, pods []WorkloadPod, now time.Time) Plan

// A WorkloadPod is a wanted pod of a workload, or one that an earlier agent wanted.
type WorkloadPod struct {
	*v1.Pod
	Status v1.PodStatus // the last known status; its phase is "" before the first
}

// A Plan says what a workload wants now.
type Plan struct {
	Pods   []*v1.Pod
	Again  time.Time       // when to plan again even without changes; zero means never
	Status manifest.Object // the workload with its status filled in
	// Expired says that the workload must be deleted: it is a finished Job whose
	// ttlSecondsAfterFinished have passed. Deleting only its pods would start it again.
	Expired bool
}

// An Op says how the wanted pod under a key has changed.
type Op uint8

const (
	// OpAdd: a pod is wanted from now on. Another pod that was wanted under its key ends
	// first.
	OpAdd Op = iota + 1
	// OpUpdate: the same pod has another spec or other labels or annotations.
	OpUpdate
	// OpReconcile: the same pod has changed, but nothing that its containers depend on.
	OpReconcile
	// OpDelete: the pod must end, within its DeletionGracePeriodSeconds.
	OpDelete
	// OpRemove: no pod is wanted under the key any more.
	OpRemove
)

var ops = map[Op]string{OpAdd: "ADD", OpUpdate: "UPDATE", OpReconcile: "RECONCILE", OpDelete: "DELETE", OpRemove: "REMOVE"}

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
		case c.Op == OpRemove && i >= 0:
			deferred = slices.Delete(deferred, i, i+1)
		case c.Op == OpRemove:
		case i >= 0:
			deferred[i].Pod = c.Pod
		default:
			deferred = append(deferred, Change{Op: OpAdd, Key: c.Key, Pod: c.Pod})
		}
	}
	return deferred
}

func diff(old, now map[podsync.Key]*v1.Pod) []Change {
	var changes []Change
	for key, pod := range now {
		if op := compare(old[key], pod); op != 0 {
			changes = append(changes, Change{op, key, pod})
		}
	}
	for key := range old {
		if now[key] == nil {
			changes = append(changes, Change{OpRemove, key, nil})
		}
	}
	slices.SortFunc(changes, func(a, b Change) int { return a.Key.Compare(b.Key) })
	return changes
}

// compare returns how a pod has changed; 0 if it has not.
func compare(old, now *v1.Pod) Op {
	switch {
	case old == nil || old.UID != now.UID:
		return OpAdd
	case old == now:
		return 0
	case now.DeletionTimestamp != nil:
		if old.DeletionTimestamp != nil && reflect.DeepEqual(old.DeletionGracePeriodSeconds, now.DeletionGracePeriodSeconds) {
			return 0
		}
		return OpDelete
	case !reflect.DeepEqual(&old.Spec, &now.Spec) || !maps.Equal(old.Labels, now.Labels) || !maps.Equal(old.Annotations, now.Annotations):
		return OpUpdate
	case !reflect.DeepEqual(old, now):
		return OpReconcile
	}
	return 0
}
