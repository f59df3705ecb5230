package crix

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/internal/atomicfile"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// findFiles learns which pods have files. A directory without a readable pod.json
// stays as it is: another version wrote it, the disk had a bad moment, or it is the
// kubelet's. Of what this package makes and removes only an empty one has none.
func (d *Driver) findFiles() error {
	if err := atomicfile.MakeDirs(d.podsDir(), 0o750); err != nil {
		return err
	}
	entries, err := os.ReadDir(d.podsDir())
	if err != nil {
		return err
	}
	for _, e := range entries {
		pod, err := d.readPod(e.Name())
		switch {
		case err == nil:
			d.files[e.Name()] = pod
			if _, err := os.Lstat(filepath.Join(d.podDir(e.Name()), endingFile)); err == nil {
				d.ending[e.Name()] = true
			}
		case errors.Is(err, fs.ErrNotExist) && d.removeEmpty(e.Name()) == nil:
		default:
			d.Log.Error("files of an unknown pod stay", "uid", e.Name(), "err", err)
		}
	}
	return nil
}

// removeEmpty removes the directory of a pod whose making or removing was cut short.
func (d *Driver) removeEmpty(uid string) error {
	unfinished, err := filepath.Glob(filepath.Join(d.podDir(uid), ".pod.json.*.tmp"))
	if err != nil {
		return err
	}
	for _, path := range unfinished {
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return os.Remove(d.podDir(uid))
}

func (d *Driver) readPod(uid string) (*v1.Pod, error) {
	data, err := os.ReadFile(filepath.Join(d.podDir(uid), "pod.json"))
	if err != nil {
		return nil, err
	}
	pod := &v1.Pod{}
	if err := json.Unmarshal(data, pod); err != nil {
		return nil, fmt.Errorf("pod.json: %w", err)
	}
	if string(pod.UID) != uid || pod.Name == "" || pod.Namespace == "" {
		return nil, errors.New("pod.json: is of another pod")
	}
	return pod, nil
}

// Accepted returns the pods that have files, as they were accepted.
func (d *Driver) Accepted() []*v1.Pod {
	d.mu.Lock()
	defer d.mu.Unlock()
	var pods []*v1.Pod
	for _, uid := range slices.Sorted(maps.Keys(d.files)) {
		pods = append(pods, d.files[uid])
	}
	return pods
}

// accepted returns the pod with files of this UID, or nil.
func (d *Driver) accepted(uid string) *v1.Pod {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.files[uid]
}

func (d *Driver) filesOf(key podsync.Key) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var uids []string
	for uid, pod := range d.files {
		if podsync.KeyOf(pod) == key {
			uids = append(uids, uid)
		}
	}
	slices.Sort(uids)
	return uids
}

// makeFiles makes what the pod needs on disk before its sandbox runs. It is safe
// to repeat.
func (d *Driver) makeFiles(pod *v1.Pod) error {
	uid := string(pod.UID)
	d.setClean(uid, false)
	if err := d.accept(pod); err != nil {
		return err
	}
	if err := os.MkdirAll(d.podLogDir(pod.Namespace, pod.Name, uid), 0o755); err != nil {
		return err
	}
	return d.volumes.Make(pod)
}

// accept writes pod.json, unless it says the same already.
func (d *Driver) accept(pod *v1.Pod) error {
	uid := string(pod.UID)
	old := d.accepted(uid)
	if old == pod {
		return nil
	}
	dir := d.podDir(uid)
	makeDirs := os.MkdirAll
	if old == nil {
		makeDirs = atomicfile.MakeDirs
	}
	if err := makeDirs(dir, 0o750); err != nil {
		return err
	}
	data, err := json.Marshal(pod)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(filepath.Join(dir, "pod.json"), data, 0o600); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.files[uid] = pod
	return nil
}

// forgetFiles removes the files and the logs of a pod of which nothing runs.
func (d *Driver) forgetFiles(uid string) error {
	pod := d.accepted(uid)
	if pod == nil {
		return nil
	}
	if err := d.release(uid); err != nil {
		return err
	}
	if err := os.RemoveAll(d.podLogDir(pod.Namespace, pod.Name, uid)); err != nil {
		return err
	}
	if err := d.removeFiles(uid); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.files, uid)
	delete(d.actual, uid)
	delete(d.clean, uid)
	delete(d.ending, uid)
	return nil
}

// release removes what only a pod that runs needs: its volumes, its cgroup and its
// user IDs. Nothing of it runs. It is safe to repeat.
func (d *Driver) release(uid string) error {
	if err := d.volumes.Remove(types.UID(uid)); err != nil {
		return err
	}
	if d.Release != nil {
		if err := d.Release(uid); err != nil {
			return err
		}
	}
	d.setClean(uid, true)
	return nil
}

func (d *Driver) setClean(uid string, is bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if is {
		d.clean[uid] = true
	} else {
		delete(d.clean, uid)
	}
}

// Clean reports whether a pod holds nothing any more that only a pod that runs needs.
func (d *Driver) Clean(uid types.UID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.clean[string(uid)] || d.files[string(uid)] == nil
}

// removeFiles removes the pod's directory, pod.json last.
func (d *Driver) removeFiles(uid string) error {
	dir := d.podDir(uid)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if e.Name() == "pod.json" {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return os.RemoveAll(dir)
}

// SaveStatus keeps the status of a pod: for the next agent, and for a command
// line that finds none running.
func (d *Driver) SaveStatus(pod *v1.Pod, status *v1.PodStatus) error {
	// A pod that has not begun has a status too: it may have been rejected.
	if err := d.accept(pod); err != nil {
		return err
	}
	return atomicfile.WriteJSON(filepath.Join(d.podDir(string(pod.UID)), "status.json"), status)
}

// DropStatus has the status of a pod forgotten.
func (d *Driver) DropStatus(pod *v1.Pod) error {
	err := os.Remove(filepath.Join(d.podDir(string(pod.UID)), "status.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// LoadStatus returns the status that was saved last, nil if there is none. What is being
// ended has none: it may be wanted again, and then begins anew.
func (d *Driver) LoadStatus(pod *v1.Pod) *v1.PodStatus {
	if d.Ending(pod.UID) {
		return nil
	}
	data, err := os.ReadFile(filepath.Join(d.podDir(string(pod.UID)), "status.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var status v1.PodStatus
	if err == nil {
		err = json.Unmarshal(data, &status)
	}
	if err != nil {
		d.Log.Warn("status of a pod not known", "pod", podsync.KeyOf(pod).String(), "err", err)
		return nil
	}
	return &status
}

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

// endingFile is as old as the end of its pod.
const endingFile = "ending"

// PodLogs is the directory of a pod's logs; each container has one in it, by its name.
func (d *Driver) PodLogs(pod *v1.Pod) string {
	return d.podLogDir(pod.Namespace, pod.Name, string(pod.UID))
}

// podLogDir is the kubelet's layout, which log shippers know.
func (d *Driver) podLogDir(namespace, name, uid string) string {
	return filepath.Join(d.LogDir, namespace+"_"+name+"_"+uid)
}
