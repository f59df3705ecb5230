package api

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// The volumes of a pod are told with what lies in them and what their disk has left; of
// others nothing is said.
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
	list := volumeStats(pod, map[string]string{"scratch": dir, "gone": filepath.Join(dir, "gone"), "claim": dir})
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
