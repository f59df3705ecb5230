package crix

import (
	"os"
	"path/filepath"
	"slices"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// endingFile is as old as the end of its pod.
const endingFile = "ending"

// MarkEnding notes which pods are being ended: those under the key of pod that it is
// not, or all if it is nil. The next agent knows it too, and a command line. It returns
// all that have been noted of these.
func (d *Driver) MarkEnding(pod *v1.Pod, have podsync.Have) []string {
	for _, uid := range have.Files {
		if pod != nil && string(pod.UID) == uid || d.Ending(types.UID(uid)) {
			continue
		}
		f, err := os.OpenFile(filepath.Join(d.podDir(uid), endingFile), os.O_CREATE|os.O_WRONLY, 0o600)
		if err == nil {
			err = f.Close()
		}
		if err != nil {
			d.Log.Warn("end of a pod not noted", "uid", uid, "err", err)
		}
		d.mu.Lock()
		d.ending[uid] = true
		d.mu.Unlock()
	}
	return d.endingOf(have.Files)
}

// Ending reports whether the end of a pod has begun because it was not wanted.
func (d *Driver) Ending(uid types.UID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ending[string(uid)]
}

func (d *Driver) endingOf(uids []string) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(uids), func(uid string) bool { return !d.ending[uid] })
}
