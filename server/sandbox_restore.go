package server

import (
	"context"
	"fmt"
	"path/filepath"

	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/oci"
)

// RestorePod creates a sandbox and containers from the output of CheckpointPod. The containers
// are created; StartContainer of each restores its processes. A caller that gives up gets its
// error when everything is undone; a repeated request begins anew.
//
// CRI: "The checkpoint is authoritative for filesystem and process state. Image, command, args,
// working directory, environment, and process credentials describe the expected checkpointed
// process; they must not start or mutate it, and any mismatch the runtime can validate must fail
// the restore."
func (s *Server) RestorePod(ctx context.Context, req *cri.RestorePodRequest) (*cri.RestorePodResponse, error) {
	if _, ok := ctx.Deadline(); !ok {
		return nil, fault.Invalid.Errorf("RestorePod was called without a deadline")
	}
	if err := noOptions(req.Options); err != nil {
		return nil, err
	}
	run := &cri.RunPodSandboxRequest{Config: req.Config, RuntimeHandler: req.RuntimeHandler}
	if err := s.checkSandbox(run); err != nil {
		return nil, err
	}
	pod, err := s.matchPod(req)
	if err != nil {
		return nil, err
	}
	var made []*cri.RestoredContainer
	name := sandboxName(req.Config.Metadata)
	id, err := s.sandboxes.must(ctx, name, req, func(ctx context.Context, c *creation) error {
		return s.restorePod(ctx, c, run, req, pod)
	})
	if err != nil {
		return nil, err
	}
	sb, err := s.runtime.Sandbox(id)
	if err != nil {
		return nil, err
	}
	for _, c := range sb.Containers() {
		made = append(made, &cri.RestoredContainer{Name: s.index.container(c).config.Metadata.Name, ContainerId: c.ID()})
	}
	return &cri.RestorePodResponse{PodSandboxId: id, RestoredContainers: made}, nil
}

// matchPod reads a pod's checkpoint and compares it with the request. It returns the directory
// of each container's checkpoint, by container name.
func (s *Server) matchPod(req *cri.RestorePodRequest) (map[string]string, error) {
	h, err := s.handler(req.RuntimeHandler)
	if err != nil {
		return nil, err
	}
	if by := h.Engine; by != "" {
		return nil, fault.Invalid.Errorf("runtime handler %q runs containers by %s, and no OCI runtime is asked to restore", req.RuntimeHandler, by)
	}
	pod, was, err := readPod(req.CheckpointPath)
	if err != nil {
		return nil, err
	}
	is := check{"namespaces of the pod", podNamespaces(req.Config), podNamespaces(was)}
	if err := is.compare(); err != nil {
		return nil, err
	}
	dirs := make(map[string]string)
	for _, c := range pod.Containers {
		dirs[c.Name] = filepath.Join(req.CheckpointPath, podDir, c.ID)
	}
	if len(dirs) == 0 {
		return nil, fault.Invalid.Errorf("checkpoint %s has no containers", req.CheckpointPath)
	}
	seen := make(map[string]bool)
	for _, c := range req.ContainerConfigs {
		name := c.GetMetadata().GetName()
		switch {
		case name == "":
			return nil, fault.Invalid.Errorf("a container config has no name")
		case seen[name]:
			return nil, fault.Invalid.Errorf("two container configs have the name %q", name)
		case dirs[name] == "":
			return nil, fault.Invalid.Errorf("checkpoint %s has no container %q", req.CheckpointPath, name)
		case c.GetImage().GetImage() == "":
			return nil, fault.Invalid.Errorf("container %s names no image", name)
		}
		seen[name] = true
	}
	for name := range dirs {
		if !seen[name] {
			return nil, fault.Invalid.Errorf("checkpoint %s has a container %q, and there is no config for it", req.CheckpointPath, name)
		}
	}
	return dirs, nil
}

// podNamespaces returns the namespaces that a pod does not share with the host.
func podNamespaces(config *cri.PodSandboxConfig) map[string]string {
	o := config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	return map[string]string{
		"network": o.GetNetwork().String(), "ipc": o.GetIpc().String(), "pid": o.GetPid().String(),
		"user": o.GetUsernsOptions().GetMode().String(),
	}
}

// restorePod creates the sandbox and the containers of a creation. If a step fails, everything
// is removed.
func (s *Server) restorePod(ctx context.Context, cr *creation, run *cri.RunPodSandboxRequest, req *cri.RestorePodRequest, dirs map[string]string) (err error) {
	if sb, ok := s.runtime.SandboxByName(cr.name); ok {
		return s.samePod(cr, sb, run, req)
	}
	if err := s.runSandbox(ctx, cr, run); err != nil {
		return err
	}
	var steps undo.Stack
	defer steps.RunIf(&err)
	steps.AddContext(ctx, "sandbox", cr.discard)
	sb, err := s.runtime.Sandbox(cr.id)
	if err != nil {
		return err
	}
	if err := fillShm(ctx, sb, filepath.Join(req.CheckpointPath, podDir)); err != nil {
		return fmt.Errorf("restore /dev/shm: %w", err)
	}
	for _, config := range req.ContainerConfigs {
		same := &cri.CreateContainerRequest{PodSandboxId: sb.ID()}
		from := &origin{dir: dirs[config.Metadata.Name]}
		_, err := s.containers.must(ctx, containerName(config.Metadata, req.Config.Metadata), same, func(ctx context.Context, c *creation) error {
			return s.newDraft(c, sb, config, from).create(ctx)
		})
		if err != nil {
			return fmt.Errorf("restore container %s: %w", config.Metadata.Name, err)
		}
	}
	return nil
}

// samePod answers a repeated request with the pod that the first one created.
func (s *Server) samePod(cr *creation, sb *oci.Sandbox, run *cri.RunPodSandboxRequest, req *cri.RestorePodRequest) error {
	if err := s.sameSandbox(cr, sb, run); err != nil {
		return err
	}
	have := make(map[string]*oci.Container)
	for _, c := range sb.Containers() {
		have[s.index.container(c).config.GetMetadata().GetName()] = c
	}
	for _, config := range req.ContainerConfigs {
		c := have[config.Metadata.Name]
		if c == nil || len(have) != len(req.ContainerConfigs) || c.Config().Restore == "" || c.Status().State != oci.Created || !proto.Equal(repeatedContainer(s.index.container(c).config), repeatedContainer(config)) {
			cr.found = false
			return fault.Exists.Errorf("sandbox name %s is taken by sandbox %s, which is another pod or has begun to run", cr.name, sb.ID())
		}
	}
	return nil
}
