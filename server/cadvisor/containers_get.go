package cadvisor

import (
	"context"
	"encoding/json"
	"maps"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/crisp-cri/crisp/internal/fault"
)

// A containerService is containerd.services.containers.v1.Containers.
type containerService struct {
	containers.UnimplementedContainersServer
	server *Server
}

// specType is the type URL of an OCI runtime spec, whose value is JSON.
const specType = "types.containerd.io/opencontainers/runtime-spec/1/Spec"

// kindLabel is the label by which containerd distinguishes sandboxes and containers.
const kindLabel = "io.cri-containerd.kind"

// Get returns a sandbox or a container, from before it starts until it is removed.
func (c containerService) Get(ctx context.Context, req *containers.GetContainerRequest) (*containers.GetContainerResponse, error) {
	if err := c.server.begin(ctx); err != nil {
		return nil, err
	}
	o, err := c.server.source.Object(req.GetID())
	if err != nil {
		return nil, err
	}
	labels := map[string]string{}
	maps.Copy(labels, o.Labels)
	labels[kindLabel] = "container"
	if o.Sandbox == "" {
		labels[kindLabel] = "sandbox"
	}
	spec, err := json.Marshal(o.Spec)
	if err != nil {
		return nil, fault.Internal.Errorf("encode spec of %s: %w", o.ID, err)
	}
	return &containers.GetContainerResponse{Container: &containers.Container{
		ID:        o.ID,
		Labels:    labels,
		Image:     o.Image,
		Runtime:   &containers.Container_Runtime{Name: "crisp"},
		Spec:      &anypb.Any{TypeUrl: specType, Value: spec},
		CreatedAt: timestamppb.New(o.CreatedAt),
		UpdatedAt: timestamppb.New(o.CreatedAt),
		Sandbox:   o.Sandbox,
	}}, nil
}
