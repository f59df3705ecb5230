package server

import (
	"context"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ListContainers lists the containers that pass the filter.
func (s *Server) ListContainers(_ context.Context, req *cri.ListContainersRequest) (*cri.ListContainersResponse, error) {
	return &cri.ListContainersResponse{Containers: s.listContainers(req.Filter)}, nil
}

// listContainers returns a snapshot. CRI: "All those fields are combined with 'AND'."
func (s *Server) listContainers(f *cri.ContainerFilter) []*cri.Container {
	var list []*cri.Container
	for _, c := range s.visibleContainers() {
		rec, state := s.index.container(c), containerState(c.Status().State)
		if !hasPrefix(c.ID(), f.GetId()) || !hasPrefix(c.SandboxID(), f.GetPodSandboxId()) ||
			f.GetState() != nil && f.GetState().State != state ||
			!selects(f.GetLabelSelector(), rec.config.Labels) {
			continue
		}
		list = append(list, &cri.Container{
			Id:           c.ID(),
			PodSandboxId: c.SandboxID(),
			Metadata:     rec.config.Metadata,
			Image:        rec.image(),
			ImageRef:     rec.imageRef,
			ImageId:      rec.imageID,
			State:        state,
			CreatedAt:    c.CreatedAt().UnixNano(),
			Labels:       rec.config.Labels,
			Annotations:  rec.config.Annotations,
		})
	}
	return list
}
