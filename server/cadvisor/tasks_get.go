package cadvisor

import (
	"context"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/crisp-cri/crisp/internal/fault"
)

// A taskService is containerd.services.tasks.v1.Tasks.
type taskService struct {
	tasks.UnimplementedTasksServer
	server *Server
}

// Get returns the process of a container, or one in the network of a sandbox. Before the start
// the error is fault.NotFound: cAdvisor asks again.
func (t taskService) Get(ctx context.Context, req *tasks.GetRequest) (*tasks.GetResponse, error) {
	if err := t.server.begin(ctx); err != nil {
		return nil, err
	}
	o, err := t.server.source.Object(req.GetContainerID())
	if err != nil {
		return nil, err
	}
	if pid := t.server.pid(o.ID); pid != 0 {
		o.Pid = pid
	}
	p := &task.Process{ID: o.ID, ContainerID: o.ID, Pid: uint32(o.Pid), Status: task.Status_RUNNING}
	switch {
	case o.Exit != nil:
		p.Pid, p.Status = 0, task.Status_STOPPED
		p.ExitStatus, p.ExitedAt = o.Exit.Code, timestamppb.New(o.Exit.At)
	case o.Pid == 0:
		return nil, fault.NotFound.Errorf("nothing runs in %s yet", o.ID)
	}
	return &tasks.GetResponse{Process: p}, nil
}
