package housekeeping

import (
	"log/slog"
	"testing"

	"github.com/crisp-cri/crisp/agent/podfiles"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	critest "k8s.io/cri-api/pkg/apis/testing"
)

// volumePods is the node's only pod, which has mounted an image.
type volumePods struct{ Pods }

func (volumePods) Wanted() []*v1.Pod {
	pod := &v1.Pod{}
	pod.Spec.Volumes = []v1.Volume{{Name: "model", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "model:1"}}}}
	return []*v1.Pod{pod}
}

func (volumePods) Active(pods []*v1.Pod) []*v1.Pod { return pods }

// A runtime that does not say which image a volume has must not cost the pod that image; a
// reference that no image can have must not keep all images for ever.
func TestImagesOfVolumes(t *testing.T) {
	dir := t.TempDir()
	files, err := podfiles.Open(podfiles.Options{Root: dir, LogDir: dir, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	images := critest.NewFakeImageService()
	images.SetFakeImages([]string{"model:1"})
	k := New(Options{Files: files, Pods: volumePods{}, Runtime: critest.NewFakeRuntimeService(), Images: images})
	if used, err := k.ImagesInUse(t.Context()); err != nil || !used["model:1"] {
		t.Fatalf("%v, %v", used, err)
	}
	images.InjectError("ImageStatus", status.Error(codes.DeadlineExceeded, "late"))
	if used, err := k.ImagesInUse(t.Context()); err == nil {
		t.Errorf("used are only %v", used)
	}
	images.InjectError("ImageStatus", status.Error(codes.InvalidArgument, "no reference"))
	if used, err := k.ImagesInUse(t.Context()); err != nil || used["model:1"] {
		t.Errorf("%v, %v", used, err)
	}
}
