package criruntime

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// makeFiles makes what the pod needs on disk before its sandbox runs. It is safe
// to repeat.
func (d *Driver) makeFiles(ctx context.Context, pod *v1.Pod) error {
	d.setClean(string(pod.UID), false)
	if err := d.files.Accept(pod); err != nil {
		return err
	}
	if err := d.files.MakeLogDir(pod); err != nil {
		return err
	}
	return d.volumes.Make(ctx, pod)
}

// forgetFiles removes the files and the logs of a pod of which nothing runs.
func (d *Driver) forgetFiles(uid string) error {
	if d.files.Pod(types.UID(uid)) == nil {
		return nil
	}
	if err := d.release(uid); err != nil {
		return err
	}
	if err := d.files.Remove(types.UID(uid)); err != nil {
		return err
	}
	d.setClean(uid, false)
	return nil
}

// release removes what only a running pod needs: its volumes, its cgroup and its user IDs. The
// caller ensures that nothing of it runs. It is safe to repeat.
func (d *Driver) release(uid string) error {
	if err := d.volumes.Remove(types.UID(uid)); err != nil {
		return err
	}
	if err := d.o.ContainerManager.Release(uid); err != nil {
		return err
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

// Clean reports whether a pod holds nothing any more that only a running pod needs.
func (d *Driver) Clean(uid types.UID) bool {
	d.mu.Lock()
	clean := d.clean[string(uid)]
	d.mu.Unlock()
	return clean || d.files.Pod(uid) == nil
}
