package housekeeping

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/podfiles"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"
)

// A sidecar's log fills the disk like any other: its limits are checked, and its usage is counted,
// as is that of a running init container.
func TestDiskOfSidecars(t *testing.T) {
	pod := &v1.Pod{}
	pod.Name, pod.UID = "web", "1"
	pod.Spec.InitContainers = []v1.Container{
		{Name: "done"}, {Name: "init"},
		{Name: "sidecar", RestartPolicy: ptr.To(v1.ContainerRestartPolicyAlways), Resources: v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceEphemeralStorage: resource.MustParse("1Mi")}}},
	}
	pod.Spec.Containers = []v1.Container{{Name: "app"}}
	if !bounded(pod) {
		t.Error("the limit of a sidecar is not looked at")
	}
	initial := &v1.Pod{Spec: v1.PodSpec{InitContainers: []v1.Container{{Name: "init", Resources: pod.Spec.InitContainers[2].Resources}}}}
	if !bounded(initial) {
		t.Error("the limit that a pod has by an init container is not looked at")
	}
	dir := t.TempDir()
	files, err := podfiles.Open(podfiles.Options{Root: dir, LogDir: filepath.Join(dir, "logs"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"done", "init", "sidecar", "app"} {
		path := filepath.Join(files.LogDir(pod), name)
		if err := errors.Join(os.MkdirAll(path, 0o700), os.WriteFile(filepath.Join(path, "0.log"), make([]byte, 1<<20), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	stats := &cri.PodSandboxStats{Linux: &cri.LinuxPodSandboxStats{Containers: []*cri.ContainerStats{
		{Attributes: &cri.ContainerAttributes{Metadata: &cri.ContainerMetadata{Name: "init"}}, WritableLayer: &cri.FilesystemUsage{UsedBytes: &cri.UInt64Value{Value: 10 << 20}}},
	}}}
	got := &podUse{Pod: pod, Use: map[v1.ResourceName]int64{}, Containers: map[string]int64{}, Volumes: map[string]int64{}}
	k := New(Options{Files: files, Driver: criruntime.New(criruntime.Options{Root: dir, Files: files})})
	k.measurePod(got, stats)
	const slack = 100_000 // for directories and partial blocks
	for name, want := range map[string]int64{"done": 0, "init": 11 << 20, "sidecar": 1 << 20, "app": 1 << 20} {
		if use := got.Containers[name]; use < want || use > want+slack {
			t.Errorf("%s uses %d bytes, want %d", name, use, want)
		}
	}
	if use := got.Use[v1.ResourceEphemeralStorage]; use < 13<<20 || use > 13<<20+3*slack {
		t.Errorf("the pod uses %d bytes, want %d", use, 13<<20)
	}
}
