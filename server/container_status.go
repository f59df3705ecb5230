package server

import (
	"cmp"
	"context"
	"encoding/json"
	"strings"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/server/spec"
)

// ContainerStatus returns everything CRI reports about a container.
//
// CRI: "If the container is not present, returns an error": NotFound, the only code that tells
// the kubelet that the container does not exist.
func (s *Server) ContainerStatus(_ context.Context, req *cri.ContainerStatusRequest) (*cri.ContainerStatusResponse, error) {
	c, err := s.runtime.Container(req.ContainerId)
	if err != nil {
		return nil, err
	}
	if s.isHidden(c) {
		return nil, fault.NotFound.Errorf("no container %q", req.ContainerId)
	}
	resp := &cri.ContainerStatusResponse{Status: s.containerStatus(c)}
	if req.Verbose {
		info, err := json.Marshal(map[string]any{
			"sandboxID":   c.SandboxID(),
			"pid":         c.Status().Pid,
			"phase":       c.Status().State.String(), // scripts take the first "state" in crictl's output for CRI's
			"config":      s.index.container(c).config,
			"runtimeSpec": c.Config().Spec,
			"startup":     s.startupOfContainer(c),
		})
		if err != nil {
			return nil, fault.Internal.Errorf("encode info of container %s: %w", c.ID(), err)
		}
		resp.Info = map[string]string{"info": string(info)}
	}
	return resp, nil
}

// containerStatus returns the CRI status of c, from one snapshot. Mounts are those of the
// request, unchanged: the kubelet finds the termination log by them.
func (s *Server) containerStatus(c *oci.Container) *cri.ContainerStatus {
	rec, st := s.index.container(c), c.Status()
	status := &cri.ContainerStatus{
		Id:          c.ID(),
		Metadata:    rec.config.Metadata,
		State:       containerState(st.State),
		CreatedAt:   c.CreatedAt().UnixNano(),
		Image:       s.containerImage(rec),
		ImageRef:    rec.imageRef,
		ImageId:     rec.imageID,
		Labels:      rec.config.Labels,
		Annotations: rec.config.Annotations,
		Mounts:      rec.mounts(),
		LogPath:     c.Config().LogPath,
		User:        rec.imageUser,
		StopSignal:  rec.signal,
		Resources:   resourcesNow(c, rec),
	}
	if status.State != cri.ContainerState_CONTAINER_CREATED {
		status.StartedAt = nanos(st.StartedAt)
	}
	if status.State == cri.ContainerState_CONTAINER_EXITED {
		status.FinishedAt = nanos(st.FinishedAt)
		status.ExitCode = st.ExitCode
		status.Reason, status.Message = st.Reason, st.Message
	}
	return status
}

// nanos converts a time to CRI's nanoseconds, where 0 stands for no time.
func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// tagOf returns the tag that the user's name for the image refers to, else the first tag.
func tagOf(tags []string, name string) string {
	for _, full := range []string{name, name + ":latest"} {
		for _, tag := range tags {
			if tag == full || name != "" && strings.HasSuffix(tag, "/"+full) {
				return tag
			}
		}
	}
	return tags[0]
}

// containerImage returns the image's name for people: its current tag, else the name the user
// wrote, else the name the kubelet requested. It is never empty, even if the image is gone.
func (s *Server) containerImage(rec *containerRecord) *cri.ImageSpec {
	asked := rec.image()
	spec := &cri.ImageSpec{
		Image:              cmp.Or(asked.GetUserSpecifiedImage(), asked.GetImage(), rec.imageRef),
		Annotations:        asked.GetAnnotations(),
		UserSpecifiedImage: asked.GetUserSpecifiedImage(),
		RuntimeHandler:     asked.GetRuntimeHandler(),
	}
	if img, err := s.images.Get(rec.imageID); err == nil && len(img.Tags) > 0 {
		spec.Image = tagOf(img.Tags, asked.GetUserSpecifiedImage())
	}
	return spec
}

// resourcesNow returns the limits of c for its status: those of its cgroup while it is alive,
// else those it was given. The kubelet considers a resize done when it sees them.
func resourcesNow(c *oci.Container, rec *containerRecord) *cri.ContainerResources {
	given := rec.resources
	now := limitsOf(c.Resources())
	if now == nil {
		if given == nil {
			return nil
		}
		return &cri.ContainerResources{Linux: given}
	}
	if given.GetMemorySwapLimitInBytes() == 0 && now.MemorySwapLimitInBytes == now.MemoryLimitInBytes {
		now.MemorySwapLimitInBytes = 0 // there is no swap, and none was asked for
	}
	return &cri.ContainerResources{Linux: spec.MergeResources(given, now)}
}
