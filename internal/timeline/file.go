package timeline

import (
	"encoding/json"
	"os"
	"time"
)

// maxFile bounds a file of WriteFile, in bytes. Most have some three thousand.
const maxFile = 64 << 10

// cutShort is what became of a stage during which its process ended.
const cutShort = "cut short by a restart"

// A Saved is what is known of one pod's start, for the next process.
type Saved struct {
	Pod     Pod          `json:"pod"`
	Seen    time.Time    `json:"seen,omitzero"`  // by the agent
	Ready   time.Time    `json:"ready,omitzero"` // for the first time, as the agent saw it
	Attempt uint32       `json:"attempt,omitempty"`
	Stages  []SavedStage `json:"stages"`
}

// A SavedStage is a Stage, and whether a Wait began it.
type SavedStage struct {
	Stage
	Wait bool `json:"wait,omitempty"`
}

// Save returns the stages of the pod with this UID, and a number that grows with each change of them;
// 0 if there are none.
func (r *Recorder) Save(uid string) ([]SavedStage, uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.pods[uid]
	if p == nil {
		return nil, 0
	}
	var list []SavedStage
	for _, o := range p.copyLocked() {
		for _, s := range o.stages() {
			list = append(list, SavedStage{s, o.wait})
		}
	}
	return list, p.changes
}

// Changes returns the number that Save would.
func (r *Recorder) Changes(uid string) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.pods[uid]; p != nil {
		return p.changes
	}
	return 0
}

// Restore takes in what an earlier process has saved of a pod, unless there are stages of it already.
// Waits go on until Wait says otherwise; what else was going on has ended.
func (r *Recorder) Restore(pod Pod, list []SavedStage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pods[pod.UID] != nil {
		return
	}
	now := time.Now()
	for _, s := range list[:min(len(list), maxFirst+maxLast)] {
		if !s.Wait && s.End.IsZero() {
			s.Stage.close(now)
			s.Err = cutShort
		}
		r.addLocked(pod, &Open{recorder: r, stage: s.Stage, wait: s.Wait})
	}
}

// WriteFile keeps s in the file at path, in whose directory there is no other writer. It syncs nothing:
// a power cut may lose the file, which only costs what s tells. One that would be too large loses the
// parts of its stages, then stages from the middle.
func WriteFile(path string, s Saved) error {
	data, err := json.Marshal(s)
	for len(data) > maxFile && err == nil {
		list := append([]SavedStage(nil), s.Stages...)
		parts := false
		for i := range list {
			parts = parts || list[i].Parts != nil
			list[i].Parts = nil
		}
		if n := len(list); !parts {
			list = append(list[:n/3], list[n-n/3:]...)
		}
		s.Stages = list
		data, err = json.Marshal(s)
	}
	if err != nil {
		return err
	}
	next := path + ".tmp"
	if err = os.WriteFile(next, data, 0o600); err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		os.Remove(next)
	}
	return err
}

// ReadFile reads what WriteFile wrote.
func ReadFile(path string) (s Saved, err error) {
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	return s, err
}
