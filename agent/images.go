package agent

import (
	"context"
	"errors"
	"slices"

	"github.com/crisp-cri/crisp/agent/criruntime"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (c *care) imagesDir(ctx context.Context) (string, error) {
	resp, err := c.images.ImageFsInfo(ctx)
	if err != nil {
		return "", criruntime.Fault(err)
	}
	for _, f := range resp.GetImageFilesystems() {
		if dir := f.GetFsId().GetMountpoint(); dir != "" {
			return dir, nil
		}
	}
	return "", errors.New("the runtime does not tell where its images are")
}

// ImageSpace is as imagegc.Node says.
func (c *care) ImageSpace(ctx context.Context) (capacity, available int64, err error) {
	dir, err := c.imagesDir(ctx)
	if err != nil {
		return 0, 0, err
	}
	bytes, _, err := space(dir)
	return bytes.Capacity, bytes.Available, err
}

// ImagesInUse is as imagegc.Node says: those of all containers, dead ones too, and those that pods
// mount.
func (c *care) ImagesInUse(ctx context.Context) (map[string]bool, error) {
	list, err := c.runtime.ListContainers(ctx, nil)
	if err != nil {
		return nil, criruntime.Fault(err)
	}
	used := map[string]bool{}
	for _, container := range list {
		for _, name := range []string{container.GetImageId(), container.GetImageRef(), container.GetImage().GetImage()} {
			used[name] = true
		}
	}
	accepted := slices.DeleteFunc(c.files.Accepted(), func(pod *v1.Pod) bool { return c.roster.finished(pod) && c.driver.Clean(pod.UID) })
	for _, pod := range slices.Concat(c.roster.active(c.wanted.Pods()), accepted) {
		for i := range pod.Spec.Volumes {
			if image := pod.Spec.Volumes[i].Image; image != nil {
				if resp, err := c.images.ImageStatus(ctx, &cri.ImageSpec{Image: image.Reference}, false); err == nil {
					used[resp.GetImage().GetId()] = true
				}
			}
		}
	}
	return used, nil
}
