package criruntime

import (
	"context"

	"github.com/crisp-cri/crisp/agent/pleg"
	"github.com/crisp-cri/crisp/agent/podspec"
	"github.com/crisp-cri/crisp/agent/podsync"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// States lists what the runtime has of this agent's pods, as pleg.Runtime says.
func (d *Driver) States(ctx context.Context) (map[podsync.Key]pleg.States, error) {
	sandboxes, err := d.runtime.ListPodSandbox(ctx, &cri.PodSandboxFilter{LabelSelector: d.mine()})
	if err != nil {
		return nil, Fault(err)
	}
	containers, err := d.runtime.ListContainers(ctx, &cri.ContainerFilter{LabelSelector: d.mine()})
	if err != nil {
		return nil, Fault(err)
	}
	all := map[podsync.Key]pleg.States{}
	note := func(labels map[string]string, id string, state int32) {
		key := podsync.Key{Namespace: labels[podspec.LabelPodNamespace], Name: labels[podspec.LabelPodName]}
		if all[key] == nil {
			all[key] = pleg.States{}
		}
		all[key][id] = state
	}
	for _, sb := range sandboxes {
		note(sb.Labels, sb.Id, int32(sb.State))
	}
	for _, c := range containers {
		note(c.Labels, c.Id, int32(c.State))
	}
	return all, nil
}

// Stream sends the runtime's container events, as pleg.Runtime says.
func (d *Driver) Stream(ctx context.Context, out chan *cri.ContainerEventResponse) error {
	return Fault(d.runtime.GetContainerEvents(ctx, out, nil))
}
