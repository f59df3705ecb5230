package server

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Pulls give way to the calls that pods wait for, and to no others: not to each other, and not to a monitor's lists.
func TestPodCalls(t *testing.T) {
	want := []string{
		"RunPodSandbox", "StopPodSandbox", "RemovePodSandbox", "CreateContainer", "StartContainer", "StopContainer", "RemoveContainer",
		"ExecSync", "CheckpointContainer",
	}
	var got []string
	for _, m := range slices.Concat(cri.RuntimeService_ServiceDesc.Methods, cri.ImageService_ServiceDesc.Methods) {
		if isPodCall(m.MethodName) {
			got = append(got, m.MethodName)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("calls of pods (-want +got):\n%s", diff)
	}
}
