package server

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/logctx"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/server/spec"
)

// CreateContainer prepares a container in a ready sandbox. The work survives the
// caller; a repetition joins it (see creations).
//
// The sandbox's configuration is the one it was made with: the copy that comes
// with the request is the same in what a container may depend on.
func (s *Server) CreateContainer(ctx context.Context, req *cri.CreateContainerRequest) (*cri.CreateContainerResponse, error) {
	sb, err := s.runtime.Sandbox(req.PodSandboxId)
	if err != nil {
		return nil, err
	}
	config := req.GetConfig()
	switch {
	case config.GetMetadata().GetName() == "":
		return nil, fault.Invalid.Errorf("container config has no name")
	case config.GetImage().GetImage() == "":
		return nil, fault.Invalid.Errorf("container %s names no image", config.Metadata.Name)
	}
	if err := checkNames(map[string]string{"name": config.Metadata.Name}); err != nil {
		return nil, fmt.Errorf("metadata: %w", err)
	}
	s.runtime.Warm()
	name := containerName(config.Metadata, s.index.sandbox(sb).config.Metadata)
	same := &cri.CreateContainerRequest{PodSandboxId: sb.ID()}
	id, err := s.containers.do(ctx, name, same, func(ctx context.Context, c *creation) error {
		return s.createContainer(ctx, c, sb, config)
	})
	if err != nil {
		return nil, err
	}
	return &cri.CreateContainerResponse{ContainerId: id}, nil
}

// sameContainer answers a repetition of a request that was answered before.
func (s *Server) sameContainer(cr *creation, c *oci.Container, sb *oci.Sandbox, config *cri.ContainerConfig) error {
	switch {
	case c.SandboxID() != sb.ID() || !proto.Equal(s.index.container(c).config, config):
		return fault.Exists.Errorf("container name %s is taken by container %s with another configuration", cr.name, c.ID())
	case c.Status().State >= oci.Exited:
		return fault.Exists.Errorf("container name %s is taken by container %s, which is %s", cr.name, c.ID(), c.Status().State)
	}
	cr.id, cr.found = c.ID(), true
	return nil
}

// createFrom makes the container of a creation, from a checkpoint if from is not nil.
// If a step fails, the ones before it are undone.
func (s *Server) createFrom(ctx context.Context, cr *creation, sb *oci.Sandbox, config *cri.ContainerConfig, from *origin) (err error) {
	if c, ok := s.runtime.ContainerByName(cr.name); ok {
		return s.sameContainer(cr, c, sb, config)
	}
	if st := sb.State(); st != oci.SandboxReady {
		return fault.WrongState.Errorf("sandbox %s is %s: cannot create container %s", sb.ID(), st, config.Metadata.Name)
	}
	h, err := s.handlerOf(sb)
	if err != nil {
		return err
	}
	if err := sameUserNamespace(sb, config.GetLinux().GetSecurityContext().GetNamespaceOptions()); err != nil {
		return err
	}
	ctx = logctx.With(ctx, "container", cr.id, "sandbox", sb.ID())
	labels, err := s.containerLabels(sb, config)
	if err != nil {
		return fmt.Errorf("container %s: %w", config.Metadata.Name, err)
	}
	var steps undo.Stack
	defer steps.RunIf(&err)

	var img image.Image
	var r *restoration
	if from == nil {
		img, err = s.imageOf(ctx, sb, config)
	} else if r, err = s.fetch(ctx, cr, sb, h, config, from, &steps); err == nil {
		img = r.base
	}
	if err != nil {
		return err
	}
	rec := &containerRecord{config: config, original: r.image(), imageID: img.ID, imageRef: imageRef(img), resources: config.GetLinux().GetResources()}
	if rec.signal, err = stopSignal(config.StopSignal, img.Config.Config.StopSignal); err != nil {
		return err
	}

	stage, cancel := cr.enter(ctx, "rootfs")
	defer cancel()
	root, err := s.mountImage(stage, sb, cr.id, img.ID, false, labels.Mount)
	if err != nil {
		return fmt.Errorf("mount root file system: %w", err)
	}
	steps.Add("root file system", s.unmount(ctx, cr.id))
	if r != nil {
		if err := s.change(stage, cr.id, r); err != nil {
			return fmt.Errorf("restore root file system: %w", err)
		}
	}
	stage, cancel = cr.enter(ctx, "volumes")
	defer cancel()
	volumes, err := s.makeVolumes(stage, cr.id, sb, config, img.Config.Config, labels)
	if err != nil {
		return err
	}

	stage, cancel = cr.enter(ctx, "mounts")
	defer cancel()
	mounts, err := s.resolveMounts(stage, cr.id, sb, rec, labels, &steps)
	if err != nil {
		return err
	}
	// A big volume takes minutes, once: this stage has no end but the sandbox's.
	_, cancel = cr.enter(ctx, "relabel volumes")
	defer cancel()
	if err := relabel(ctx, sb, mounts, labels); err != nil {
		return err
	}

	_, cancel = cr.enter(ctx, "spec")
	defer cancel()
	as := r.described(rec)
	built, err := s.buildSpec(cr.id, h.SpecHost, sb, as, img.Config.Config, root, mounts, volumes, labels)
	if err != nil {
		return err
	}
	annotate(built, h, sb, s.index.sandbox(sb), rec)
	rec.imageUser = as.imageUser
	if err := s.checkProfile(ctx, built); err != nil {
		return err
	}
	logPath, err := makeLogDir(s.index.sandbox(sb).config.LogDirectory, config.LogPath)
	if err != nil {
		return err
	}
	target, err := s.pidTarget(sb, config)
	if err != nil {
		return err
	}
	stage, cancel = cr.enter(ctx, "plugins")
	defer cancel()
	turn := s.plugins.Turn()
	defer turn.End()
	if err := s.tellCreate(stage, turn, sb, cr.id, built, rec, &steps); err != nil {
		return err
	}
	if r != nil {
		if err := errors.Join(r.complete(built, sb), r.fit(built)); err != nil {
			return fmt.Errorf("restore container %s: %w", config.Metadata.Name, err)
		}
		if err := fillShm(stage, sb, r.dir); err != nil {
			return fmt.Errorf("restore /dev/shm: %w", err)
		}
	}
	extra, err := rec.encode()
	if err != nil {
		return err
	}
	_, cancel = cr.enter(ctx, "record")
	defer cancel()
	c, err := s.runtime.Create(ctx, oci.ContainerConfig{
		ID: cr.id, Name: cr.name, SandboxID: sb.ID(),
		Spec: built, Env: spec.RawEnv(built.Process), PIDTarget: target,
		Stdin: config.Stdin, StdinOnce: config.StdinOnce, TTY: config.Tty,
		LogPath: logPath, Engine: h.Engine, Restore: r.directory(), Extra: extra,
	})
	if err != nil {
		return err
	}
	s.index.containers.Store(c.ID(), rec)
	s.tellCreated(ctx, turn, c)
	cr.discard = func(ctx context.Context) error { return s.removeContainer(ctx, c) }
	return nil
}

// unmount returns the step that undoes a mount.
func (s *Server) unmount(ctx context.Context, key string) func() error {
	return func() error {
		ctx, cancel := undo.Context(ctx)
		defer cancel()
		return s.images.Unmount(ctx, key, true)
	}
}

// imageOf is the image of a container that is not restored.
func (s *Server) imageOf(ctx context.Context, sb *oci.Sandbox, config *cri.ContainerConfig) (image.Image, error) {
	img, err := s.images.Get(config.Image.Image)
	if err != nil {
		return img, fmt.Errorf("image of container %s: %w", config.Metadata.Name, err)
	}
	// What it says begins with the reason that the kubelet knows.
	return img, s.allowImage(ctx, sb, config.Image, img)
}

// imageRef is ContainerStatus.image_ref: a digest that the image can be pulled
// by again, or the ID of one that was never in a registry.
func imageRef(img image.Image) string {
	if len(img.Digests) > 0 {
		return img.Digests[0]
	}
	return img.ID
}

// pidTarget is the container whose PID namespace the new one joins. It is looked
// at once more when the container starts.
//
// CRI: "This container must have been previously created in the same pod."
func (s *Server) pidTarget(sb *oci.Sandbox, config *cri.ContainerConfig) (string, error) {
	o := config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	if o.GetPid() != cri.NamespaceMode_TARGET {
		return "", nil
	}
	target, err := s.runtime.Container(o.TargetId)
	if err != nil {
		return "", fault.Invalid.Errorf("target of the PID namespace: %w", err)
	}
	if target.SandboxID() != sb.ID() {
		return "", fault.Invalid.Errorf("target of the PID namespace: container %s is not in sandbox %s", target.ID(), sb.ID())
	}
	if st := target.Status().State; st != oci.Running {
		return "", fault.WrongState.Errorf("target of the PID namespace: container %s is %s", target.ID(), st)
	}
	return target.ID(), nil
}

// makeLogDir returns the absolute path of a log, whose directory it makes.
func makeLogDir(dir, file string) (string, error) {
	if dir == "" || file == "" {
		return "", nil // not wanted
	}
	// CRI: "Path relative to PodSandboxConfig.LogDirectory for container to store the log".
	if !filepath.IsLocal(file) {
		return "", fault.Invalid.Errorf("log_path %.200q leads out of the log directory", file)
	}
	if err := checkPath("log_path", file); err != nil {
		return "", err
	}
	log := filepath.Join(dir, file)
	if err := makeDir(filepath.Dir(log)); err != nil {
		return "", fmt.Errorf("make the directory of log_path: %w", err)
	}
	return log, nil
}
