// Package desired keeps which pods this node is to run. It merges what the
// sources report into one set, by name, and says what has changed.
//
// A file that is broken harms nobody, not even its own pods: they stay as its
// last good version had them, until the file is repaired or removed. After a
// restart of the agent the last good version is the copy that was kept on disk
// when the pod was accepted (crix keeps it beside the pod's volumes).
package desired

import (
	"fmt"
	"slices"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/source"
	v1 "k8s.io/api/core/v1"
)

// A Change is a pod that is wanted from now on, in place of what was wanted
// under Key before. Pod is nil if none is.
type Change struct {
	Key podsync.Key
	Pod *v1.Pod
}

// A Store is the set of wanted pods. It belongs to one goroutine.
type Store struct {
	pods map[podsync.Key]*v1.Pod
	good map[string][]*v1.Pod // path of a file → its last good version
	errs map[string]string    // path of a file → what is wrong with it
	set  bool
}

// New returns a Store that wants nothing yet. accepted are the pods that an
// earlier agent has accepted; they are wanted as long as their file is there and
// broken.
func New(accepted []*v1.Pod) *Store {
	s := &Store{pods: map[podsync.Key]*v1.Pod{}, good: map[string][]*v1.Pod{}, errs: map[string]string{}}
	for _, pod := range accepted {
		path := pod.Annotations[manifest.AnnotationFile]
		s.good[path] = append(s.good[path], pod)
	}
	return s
}

// Ready reports whether the source has reported. Before, nothing may be ended
// for not being wanted.
func (s *Store) Ready() bool { return s.set }

// Pod returns the wanted pod of this key, or nil.
func (s *Store) Pod(key podsync.Key) *v1.Pod { return s.pods[key] }

// Update takes in all that the source has now. Changes are in the order of keys.
// problems are the errors that were not there before, one for each file.
func (s *Store) Update(u source.Update) (changes []Change, problems []error) {
	pods := map[podsync.Key]*v1.Pod{}
	good := map[string][]*v1.Pod{}
	errs := map[string]string{}
	complain := func(path string, err error) {
		errs[path] = err.Error()
		if s.errs[path] != err.Error() {
			problems = append(problems, err)
		}
	}
	for _, f := range u.Files {
		list := f.Pods
		if f.Err != nil {
			list = s.good[f.Path]
			complain(f.Path, f.Err)
		}
		good[f.Path] = list
		for _, pod := range list {
			key := podsync.KeyOf(pod)
			if other, taken := pods[key]; taken {
				complain(f.Path, fmt.Errorf("%s: metadata.name: pod %s is already defined in %s", f.Path, key, other.Annotations[manifest.AnnotationFile]))
				continue
			}
			pods[key] = pod
		}
	}
	changes = diff(s.pods, pods)
	s.pods, s.good, s.errs, s.set = pods, good, errs, true
	return changes, problems
}

func diff(old, now map[podsync.Key]*v1.Pod) []Change {
	var changes []Change
	for key, pod := range now {
		if was := old[key]; was == nil || was.UID != pod.UID {
			changes = append(changes, Change{key, pod})
		}
	}
	for key := range old {
		if now[key] == nil {
			changes = append(changes, Change{key, nil})
		}
	}
	slices.SortFunc(changes, func(a, b Change) int {
		return slices.Compare([]string{a.Key.Namespace, a.Key.Name}, []string{b.Key.Namespace, b.Key.Name})
	})
	return changes
}
