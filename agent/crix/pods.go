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

// AcceptedPod returns the pod of this UID as it was accepted, with the resources
// that it has, or nil.
func (d *Driver) AcceptedPod(uid types.UID) *v1.Pod { return d.accepted(string(uid)) }

// Accept records a pod that has changed in place. One without files is recorded
// when it gets them.
func (d *Driver) Accept(pod *v1.Pod) error {
	if d.accepted(string(pod.UID)) == nil {
		return nil
	}
	return d.accept(pod)
}
