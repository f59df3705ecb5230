package housekeeping

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/internal/fault"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// imagesDir returns the directory that the runtime reports for its images (ImageFsInfo).
func (k *Keeper) imagesDir(ctx context.Context) (string, error) {
	resp, err := k.o.Images.ImageFsInfo(ctx)
	if err != nil {
		return "", criruntime.Fault(err)
	}
	for _, f := range resp.GetImageFilesystems() {
		if dir := f.GetFsId().GetMountpoint(); dir != "" {
			return dir, nil
		}
	}
	return "", errors.New("the runtime does not report where its images are")
}

// ImageSpace implements imagegc.Node.
func (k *Keeper) ImageSpace(ctx context.Context) (capacity, available int64, err error) {
	dir, err := k.imagesDir(ctx)
	if err != nil {
		return 0, 0, err
	}
	bytes, _, err := Space(dir)
	return bytes.Capacity, bytes.Available, err
}

// ImagesInUse implements imagegc.Node. The images of dead containers are in use too, and so are
// those that pods mount as volumes.
func (k *Keeper) ImagesInUse(ctx context.Context) (map[string]bool, error) {
	list, err := k.o.Runtime.ListContainers(ctx, nil)
	if err != nil {
		return nil, criruntime.Fault(err)
	}
	used := map[string]bool{}
	for _, container := range list {
		for _, name := range []string{container.GetImageId(), container.GetImageRef(), container.GetImage().GetImage()} {
			used[name] = true
		}
	}
	accepted := slices.DeleteFunc(k.o.Files.Accepted(), func(pod *v1.Pod) bool { return k.o.Pods.Finished(pod) && k.o.Driver.Clean(pod.UID) })
	for _, pod := range slices.Concat(k.o.Pods.Active(k.o.Pods.Wanted()), accepted) {
		for i := range pod.Spec.Volumes {
			if image := pod.Spec.Volumes[i].Image; image != nil {
				resp, err := k.o.Images.ImageStatus(ctx, &cri.ImageSpec{Image: image.Reference}, false)
				// Only an answer says what is in use. Another error concerns this reference, and would
				// keep all other images for as long as the pod is there.
				if err = criruntime.Fault(err); errors.Is(err, fault.Unavailable) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
					return nil, fmt.Errorf("image %s of a volume of pod %s: %w", image.Reference, podsync.KeyOf(pod), err)
				}
				used[resp.GetImage().GetId()] = true
			}
		}
	}
	return used, nil
}
