package startup

import (
	"github.com/crisp-cri/crisp/internal/timeline"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Save writes a pod's record to the file at path, for the next agent, if it has changed since it
// was last saved.
func (k *Keeper) Save(pod *v1.Pod, path string) error {
	r, ok := k.of(pod)
	if changes := k.recorder.Changes(string(pod.UID)); !ok || r.saved == changes && r.savedReady == !r.ready.IsZero() {
		return nil
	}
	stages, changes := k.recorder.Save(string(pod.UID))
	k.mu.Lock()
	if p := k.pods[pod.UID]; p != nil { // even if the write fails: the next change tries again
		p.saved, p.savedReady = changes, !r.ready.IsZero()
	}
	k.mu.Unlock()
	return timeline.WriteFile(path, timeline.Saved{Pod: r.pod, Seen: r.seen, Ready: r.ready, Attempt: r.attempt, Stages: stages})
}

// Restore takes in the record of a pod that an earlier agent has saved. A file that cannot be
// read is ignored.
func (k *Keeper) Restore(uid types.UID, path string) {
	s, err := timeline.ReadFile(path)
	if err != nil || s.Pod.UID != string(uid) || s.Seen.IsZero() {
		return
	}
	if k.add(uid, &record{pod: s.Pod, seen: s.Seen, ready: s.Ready, attempt: s.Attempt, acted: true, observed: maxObserved}) {
		k.recorder.Restore(s.Pod, s.Stages)
	}
}
