package timeline

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"time"
)

// maxFile bounds a file of WriteFile, in bytes. Most have some three thousand.
const maxFile = 64 << 10

// cutShort is the error of a stage during which its process ended.
const cutShort = "cut short by a restart"

// A Saved is the record of one pod's start, for the next process.
type Saved struct {
	Pod     Pod          `json:"pod"`
	Seen    time.Time    `json:"seen,omitzero"`  // by the agent
	Ready   time.Time    `json:"ready,omitzero"` // for the first time, as the agent saw it
	Attempt uint32       `json:"attempt,omitempty"`
	Stages  []SavedStage `json:"stages"`
}

// A SavedStage is a Stage, and whether Wait began it.
type SavedStage struct {
	Stage
	Wait   bool   `json:"wait,omitempty"`
	Number uint64 `json:"n,omitempty"` // of the pod's stages, in a file of Keep
}

// Save returns the stages of the pod with this UID, and a number that grows with each change of
// them; 0 without stages.
func (r *Recorder) Save(uid string) ([]SavedStage, uint64) {
	r.mu.Lock()
	p := r.pods[uid]
	if p == nil {
		r.mu.Unlock()
		return nil, 0
	}
	list, changes := p.copyLocked(), p.changes
	r.mu.Unlock()
	return saved(list), changes
}

func saved(list []Open) []SavedStage {
	var all []SavedStage
	for _, o := range list {
		for _, s := range o.stages() {
			all = append(all, SavedStage{Stage: s, Wait: o.wait, Number: o.number})
		}
	}
	return all
}

// Changes returns the number that Save would return.
func (r *Recorder) Changes(uid string) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.pods[uid]; p != nil {
		return p.changes
	}
	return 0
}

// Restore loads the stages that an earlier process saved for a pod, unless the pod has stages
// already. Waits continue until the next Wait; other open stages have ended.
func (r *Recorder) Restore(pod Pod, list []SavedStage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pods[pod.UID] != nil {
		return
	}
	now := time.Now()
	for _, s := range list {
		if !s.Wait && s.End.IsZero() {
			s.Stage.close(now)
			s.Err = cutShort
		}
		r.addLocked(pod, &Open{recorder: r, stage: s.Stage, wait: s.Wait})
	}
}

// WriteFile writes s to the file at path; no other process may write in that directory. It syncs
// nothing: a power cut may lose the file, and with it only what s says. If s is too large it
// loses the parts of its stages, then stages from the middle.
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

// kept describes a record's file of Keep; guarded by Recorder.mu.
type kept struct {
	path    string // "" = no file is known to be valid
	changes uint64 // that the file has
	more    int    // bytes appended since the file was written completely
	busy    bool   // it is being written
}

// Keep brings the file at path up to date with r's stages of a pod. It appends the stages that
// have changed since the last Keep. It rewrites the file if the path changed, the last Keep
// failed, or more than maxFile has been appended. A concurrent Keep leaves its stages to the
// first.
func (r *Recorder) Keep(uid, path string) (err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.pods[uid]
	if p == nil || p.kept.busy {
		return nil
	}
	for err == nil && (p.kept.path != path || p.kept.changes != p.changes) {
		next := kept{path: path, changes: p.changes, more: p.kept.more, busy: true}
		whole := p.kept.path != path || p.kept.more > maxFile
		if whole {
			p.kept.changes, next.more = 0, 0
		}
		since := p.kept.changes
		list := slices.DeleteFunc(p.copyLocked(), func(o Open) bool {
			return o.changed <= since && o.log == nil // the parts of an open stage change, too
		})
		p.kept.busy = true
		r.mu.Unlock()
		if whole {
			err = WriteFile(path, Saved{Pod: p.pod, Stages: saved(list)})
		} else {
			var n int
			n, err = appendStages(path, saved(list))
			next.more += n
		}
		r.mu.Lock()
		if p.kept = next; err != nil {
			p.kept.path = ""
		}
	}
	p.kept.busy = false
	return err
}

// more follows the Saved in a file of Keep, any number of times.
type more struct {
	Stages []SavedStage `json:"stages"`
}

// appendStages appends a line to the file at path and returns its length.
func appendStages(path string, list []SavedStage) (int, error) {
	data, err := json.Marshal(more{list})
	if err != nil {
		return 0, err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return 0, err
	}
	n, err := f.Write(append(data, '\n'))
	return n, errors.Join(err, f.Close())
}

// ReadFile reads what WriteFile or Keep wrote; of the same stage the last version counts. A line
// without its end, left by a full disk, counts as the end.
func ReadFile(path string) (s Saved, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return s, err
	}
	d := json.NewDecoder(bytes.NewReader(data))
	if err = d.Decode(&s); err != nil {
		return s, err
	}
	for m := (more{}); d.Decode(&m) == nil; m = (more{}) {
		again := func(old SavedStage) bool {
			return slices.ContainsFunc(m.Stages, func(st SavedStage) bool { return st.Number == old.Number })
		}
		s.Stages = append(slices.DeleteFunc(s.Stages, again), m.Stages...)
	}
	slices.SortStableFunc(s.Stages, func(a, b SavedStage) int { return cmp.Compare(a.Number, b.Number) })
	return s, nil
}
