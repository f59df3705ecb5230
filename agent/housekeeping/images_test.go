package housekeeping

import (
	"log/slog"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/agent/autoupdate"
	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/node"
	"github.com/crisp-cri/crisp/agent/podfiles"
	"github.com/crisp-cri/crisp/agent/source"
	podstatus "github.com/crisp-cri/crisp/agent/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	critest "k8s.io/cri-api/pkg/apis/testing"
)

// volumePods is a node whose only pod has mounted an image.
func volumePods(files *podfiles.Store) *node.Pods {
	pod := &v1.Pod{}
	pod.Kind, pod.Namespace, pod.Name = "Pod", "default", "web"
	pod.Spec.Volumes = []v1.Volume{{Name: "model", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "model:1"}}}}
	wanted := source.NewManager(nil, nil)
	wanted.Update(source.Update{Source: manifest.SourceFile, Files: []source.File{{Path: "web.yaml", Objects: []manifest.Object{pod}}}})
	return node.NewPods(wanted, files, podstatus.NewStore(nil, files, nil, slog.New(slog.DiscardHandler)))
}

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
	k := New(Options{Files: files, Pods: volumePods(files), Updates: autoupdate.Open(filepath.Join(dir, "updates.json"), 0, slog.New(slog.DiscardHandler)), Runtime: critest.NewFakeRuntimeService(), Images: images})
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

// What a pod ran before its image was updated stays until it is sure that it will not run that again.
func TestImagesOfUpdates(t *testing.T) {
	dir := t.TempDir()
	files, err := podfiles.Open(podfiles.Options{Root: dir, LogDir: dir, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	updates := autoupdate.Open(filepath.Join(dir, "updates.json"), time.Minute, slog.New(slog.DiscardHandler))
	k := New(Options{Files: files, Pods: node.NewPods(source.NewManager(nil, nil), files, nil), Updates: updates, Runtime: critest.NewFakeRuntimeService(), Images: critest.NewFakeImageService()})
	pod := &v1.Pod{}
	pod.UID, pod.Annotations = "u", map[string]string{manifest.AnnotationAutoUpdate: "registry"}
	pod.Spec = v1.PodSpec{RestartPolicy: v1.RestartPolicyAlways, Containers: []v1.Container{{Name: "app", Image: "reg.test/app:1"}}}
	now := time.Now()
	updates.Begin(pod, map[string]autoupdate.Change{"app": {Tag: "reg.test/app:1", From: "old", To: "new"}}, nil, now)
	for _, want := range [][]string{{"new", "old"}, {"old"}} {
		updates.Step([]*v1.Pod{pod}, true, func(types.UID) *v1.PodStatus { return &v1.PodStatus{} }, now)
		used, err := k.ImagesInUse(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, id := range []string{"new", "old"} {
			if used[id] {
				got = append(got, id)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("in use are %v, want %v", got, want)
		}
		now = now.Add(time.Hour) // it does not become ready
	}
}
