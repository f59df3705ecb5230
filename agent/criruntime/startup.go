package criruntime

import (
	"context"
	"encoding/json"

	"github.com/crisp-cri/crisp/agent/podspec"
	"github.com/crisp-cri/crisp/internal/timeline"
	internalapi "k8s.io/cri-api/pkg/apis"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Startup returns the timeline of the runtime's work for the pod with this UID, which crispd
// includes in its verbose answers: of its sandbox, once listed, and of calls under way. Other
// runtimes have none.
func Startup(ctx context.Context, runtime internalapi.RuntimeService, uid string) []timeline.Stage {
	sandboxes, err := runtime.ListPodSandbox(ctx, &cri.PodSandboxFilter{LabelSelector: map[string]string{podspec.LabelPodUID: uid}})
	if err != nil {
		return nil
	}
	for _, sb := range sandboxes {
		var info struct{ Startup []timeline.Stage }
		resp, err := runtime.PodSandboxStatus(ctx, sb.Id, true)
		if err == nil && json.Unmarshal([]byte(resp.GetInfo()["info"]), &info) == nil && len(info.Startup) > 0 {
			return info.Startup
		}
	}
	status, err := runtime.Status(ctx, true)
	if err != nil {
		return nil
	}
	var activity struct {
		Starting []struct {
			UID    string
			Stages []timeline.Stage
		}
	}
	if json.Unmarshal([]byte(status.GetInfo()["activity"]), &activity) != nil {
		return nil
	}
	for _, pod := range activity.Starting {
		if pod.UID == uid {
			return pod.Stages
		}
	}
	return nil
}
