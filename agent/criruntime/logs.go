package criruntime

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	internalapi "k8s.io/cri-api/pkg/apis"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Logs returns the paths of the logs of running containers, by ID, as
// housekeeping.logRuntime says.
func (d *Driver) Logs(ctx context.Context) (map[string]string, error) {
	list, err := d.runtime.ListContainers(ctx, &cri.ContainerFilter{
		State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING}, LabelSelector: d.mine(),
	})
	if err != nil {
		return nil, Fault(err)
	}
	d.mu.Lock()
	known := map[string]string{}
	for _, s := range d.seen {
		for id, st := range s.containers {
			known[id] = st.GetLogPath()
		}
	}
	d.mu.Unlock()
	logs := map[string]string{}
	for _, c := range list {
		path := known[c.Id]
		if path == "" {
			resp, err := d.runtime.ContainerStatus(ctx, c.Id, false)
			if err != nil {
				continue // removed meanwhile
			}
			path = resp.GetStatus().GetLogPath()
		}
		if path != "" {
			logs[c.Id] = path
		}
	}
	return logs, nil
}

// Reopen makes the runtime reopen the log of a container.
func (d *Driver) Reopen(ctx context.Context, id string) error {
	return Fault(d.runtime.ReopenContainerLog(ctx, id))
}

// Running returns a logread.Options.Running for a container. A container that the runtime does
// not know has ended; while the runtime is away, a container counts as running.
func Running(runtime internalapi.RuntimeService, id string) func(context.Context) (bool, error) {
	return func(ctx context.Context) (bool, error) {
		resp, err := runtime.ContainerStatus(ctx, id, false)
		switch status.Code(err) {
		case codes.OK:
			return resp.GetStatus().GetState() == cri.ContainerState_CONTAINER_RUNNING, nil
		case codes.NotFound:
			return false, nil
		case codes.Unavailable, codes.DeadlineExceeded:
			return true, nil
		}
		return false, Fault(err)
	}
}
