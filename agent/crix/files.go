package crix

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// findFiles learns which pods have files. A directory without a readable
// pod.json is one whose making or removing was cut short: what is in it belongs
// to nobody.
func (d *Driver) findFiles() error {
	if err := os.MkdirAll(d.podsDir(), 0o750); err != nil {
		return err
	}
	entries, err := os.ReadDir(d.podsDir())
	if err != nil {
		return err
	}
	for _, e := range entries {
		pod, err := d.readPod(e.Name())
		if err != nil {
			d.Log.Warn("files of an unknown pod removed", "uid", e.Name(), "err", err)
			if err := d.removeFiles(e.Name()); err != nil {
				d.Log.Error("files of an unknown pod stay", "uid", e.Name(), "err", err)
			}
			continue
		}
		d.files[e.Name()] = podsync.KeyOf(pod)
	}
	return nil
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
	uids := make([]string, 0, len(d.files))
	for uid := range d.files {
		uids = append(uids, uid)
	}
	d.mu.Unlock()
	slices.Sort(uids)
	var pods []*v1.Pod
	for _, uid := range uids {
		if pod, err := d.readPod(uid); err == nil {
			pods = append(pods, pod)
		}
	}
	return pods
}

func (d *Driver) filesOf(key podsync.Key) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var uids []string
	for uid, k := range d.files {
		if k == key {
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
	dir := d.podDir(uid)
	if err := os.MkdirAll(dir, 0o750); err != nil {
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
	d.files[uid] = podsync.KeyOf(pod)
	d.mu.Unlock()
	if err := os.MkdirAll(d.podLogDir(pod.Namespace, pod.Name, uid), 0o755); err != nil {
		return err
	}
	for i := range pod.Spec.Volumes {
		if err := d.makeVolume(pod, &pod.Spec.Volumes[i]); err != nil {
			return fmt.Errorf("volume %s: %w", pod.Spec.Volumes[i].Name, err)
		}
	}
	return nil
}

// forgetFiles removes the files and the logs of a pod of which nothing runs.
func (d *Driver) forgetFiles(uid string) error {
	d.mu.Lock()
	key, ok := d.files[uid]
	d.mu.Unlock()
	if !ok {
		return nil
	}
	if err := os.RemoveAll(d.podLogDir(key.Namespace, key.Name, uid)); err != nil {
		return err
	}
	if err := d.removeFiles(uid); err != nil {
		return err
	}
	d.mu.Lock()
	delete(d.files, uid)
	d.mu.Unlock()
	return nil
}

// removeFiles unmounts what makeVolume mounted and removes the pod's directory,
// pod.json last. It refuses as long as anything else is mounted in there: what
// is behind a mount is not the agent's.
func (d *Driver) removeFiles(uid string) error {
	dir := d.podDir(uid)
	volumes, err := os.ReadDir(d.emptyDirs(uid))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, v := range volumes {
		if err := unix.Unmount(filepath.Join(d.emptyDirs(uid), v.Name()), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && err != unix.EINVAL {
			return fmt.Errorf("unmount volume %s: %w", v.Name(), err)
		}
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return err
	}
	if len(mounts) > 0 {
		return fmt.Errorf("%s is still mounted", mounts[0].Mountpoint)
	}
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

// SaveStatus keeps the status for the command line, which does not ask the agent. It
// is only a convenience: nothing is read back by the agent.
func (d *Driver) SaveStatus(pod *v1.Pod, status *v1.PodStatus) error {
	d.mu.Lock()
	_, ok := d.files[string(pod.UID)]
	d.mu.Unlock()
	if !ok {
		return nil
	}
	return atomicfile.WriteJSON(filepath.Join(d.podDir(string(pod.UID)), "status.json"), status)
}

// MarkEnding notes, for a command line, which pods are being ended: those under
// the key of pod that it is not, or all if it is nil.
func (d *Driver) MarkEnding(pod *v1.Pod, have podsync.Have) {
	for _, uid := range have.Files {
		if pod != nil && string(pod.UID) == uid {
			continue
		}
		f, err := os.OpenFile(filepath.Join(d.podDir(uid), endingFile), os.O_CREATE|os.O_EXCL, 0o600)
		if err == nil {
			f.Close()
		}
	}
}

// endingFile is as old as the end of its pod.
const endingFile = "ending"

// podLogDir is the kubelet's layout, which log shippers know.
func (d *Driver) podLogDir(namespace, name, uid string) string {
	return filepath.Join(d.LogDir, namespace+"_"+name+"_"+uid)
}
