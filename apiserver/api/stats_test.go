package api

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// A pod's volumes have their usage and the free space of their file system. Unmeasured volumes are
// left out.
func TestVolumeStats(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), make([]byte, 100_000), 0o600); err != nil {
		t.Fatal(err)
	}
	pod := &v1.Pod{}
	pod.Namespace = "team"
	pod.Spec.Volumes = []v1.Volume{
		{Name: "host", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: dir}}},
		{Name: "scratch", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
		{Name: "gone", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
		{Name: "claim", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}},
	}
	list := new(diskUse).volumeStats(pod, map[string]string{"scratch": dir, "gone": filepath.Join(dir, "gone"), "claim": dir})
	if len(list) != 2 || list[0].Name != "scratch" || list[1].Name != "claim" {
		t.Fatalf("%+v", list)
	}
	if s := list[0]; *s.UsedBytes < 100_000 || *s.UsedBytes > 1_000_000 || *s.InodesUsed != 2 || *s.CapacityBytes == 0 || s.PVCRef != nil {
		t.Errorf("%d bytes and %d inodes used, %+v", *s.UsedBytes, *s.InodesUsed, s)
	}
	text, err := json.Marshal(list[1])
	if err != nil || !strings.Contains(string(text), `"name":"claim","pvcRef":{"name":"data","namespace":"team"}`) || !strings.Contains(string(text), `"availableBytes":`) {
		t.Errorf("%s, %v", text, err)
	}
}

// A pod's ephemeral storage is its writable layers, its logs and its volumes on disk. Volumes in
// memory and claims do not count.
func TestEphemeralStorage(t *testing.T) {
	dir := t.TempDir()
	for name, size := range map[string]int{"logs/app/0.log": 100_000, "disk/file": 200_000, "memory/file": 400_000, "claim/file": 800_000} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, make([]byte, size), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	pod := &v1.Pod{}
	pod.Spec.Volumes = []v1.Volume{
		{Name: "disk", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
		{Name: "memory", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}},
		{Name: "claim", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}},
	}
	dirs := map[string]string{}
	for _, v := range pod.Spec.Volumes {
		dirs[v.Name] = filepath.Join(dir, v.Name)
	}
	layer, files := uint64(10_000_000), uint64(1000)
	p := &stats.PodStats{Containers: []stats.ContainerStats{{Name: "app", Rootfs: &stats.FsStats{UsedBytes: &layer, InodesUsed: &files}}}}
	new(diskUse).addFiles(p, pod, dirs, filepath.Join(dir, "logs"))
	const slack = 50_000 // for directories and partial blocks
	if c := p.Containers[0]; c.Logs == nil || *c.Logs.UsedBytes < 100_000 || *c.Logs.UsedBytes > 100_000+slack || *c.Logs.InodesUsed != 2 {
		t.Errorf("logs: %+v", c.Logs)
	}
	if s := p.EphemeralStorage; s == nil || *s.UsedBytes < 10_300_000 || *s.UsedBytes > 10_300_000+slack || *s.InodesUsed != 1004 || *s.CapacityBytes == 0 {
		t.Errorf("ephemeral storage: %+v", s)
	}
	if len(p.VolumeStats) != 3 {
		t.Errorf("%d volumes measured, want 3", len(p.VolumeStats))
	}
}

// The pod statistics of CRI are passed on, PSI included. Missing values are left out.
func TestPodStats(t *testing.T) {
	pressure := &cri.PsiStats{Full: &cri.PsiData{Total: 5, Avg10: 0.5}, Some: &cri.PsiData{Total: 7, Avg60: 1.5}}
	got := podStats(&cri.PodSandboxStats{
		Attributes: &cri.PodSandboxAttributes{Metadata: &cri.PodSandboxMetadata{Name: "web", Namespace: "team", Uid: "u"}},
		Linux: &cri.LinuxPodSandboxStats{
			Cpu: &cri.CpuUsage{Timestamp: 1e9, UsageCoreNanoSeconds: &cri.UInt64Value{Value: 4}, Psi: pressure},
			Io:  &cri.IoUsage{Timestamp: 1e9, Psi: pressure},
			Containers: []*cri.ContainerStats{{
				Attributes: &cri.ContainerAttributes{Metadata: &cri.ContainerMetadata{Name: "app"}},
				Memory:     &cri.MemoryUsage{Timestamp: 2e9, WorkingSetBytes: &cri.UInt64Value{Value: 8}, Psi: pressure},
				Swap:       &cri.SwapUsage{Timestamp: 2e9, SwapUsageBytes: &cri.UInt64Value{Value: 9}},
			}},
		},
	})
	text, err := json.Marshal(got)
	const psi = `"psi":{"full":{"total":5,"avg10":0.5,"avg60":0,"avg300":0},"some":{"total":7,"avg10":0,"avg60":1.5,"avg300":0}}`
	want := `{"podRef":{"name":"web","namespace":"team","uid":"u"},"startTime":null,"containers":[{"name":"app","startTime":null,` +
		`"memory":{"time":"1970-01-01T00:00:02Z","workingSetBytes":8,` + psi + `},"swap":{"time":"1970-01-01T00:00:02Z","swapUsageBytes":9}}],` +
		`"cpu":{"time":"1970-01-01T00:00:01Z","usageCoreNanoSeconds":4,` + psi + `},"io":{"time":"1970-01-01T00:00:01Z",` + psi + `}}`
	if err != nil || string(text) != want {
		t.Errorf("got\n%s, %v\nwant\n%s", text, err, want)
	}
}

// A runtime may list the default interface again, as the kubelet does, or leave it out, as CRI
// says. The summary has it once.
func TestPodInterfaces(t *testing.T) {
	eth0, net1 := &cri.NetworkInterfaceUsage{Name: "eth0", RxBytes: &cri.UInt64Value{Value: 7}}, &cri.NetworkInterfaceUsage{Name: "net1"}
	for name, list := range map[string][]*cri.NetworkInterfaceUsage{"again": {net1, eth0}, "left out": {net1}} {
		got := podStats(&cri.PodSandboxStats{Linux: &cri.LinuxPodSandboxStats{Network: &cri.NetworkUsage{DefaultInterface: eth0, Interfaces: list}}}).Network
		if got.Name != "eth0" || *got.RxBytes != 7 || len(got.Interfaces) != 2 || got.Interfaces[0].Name != "eth0" || got.Interfaces[1].Name != "net1" {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
