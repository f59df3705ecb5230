package server

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/image/rootfs"
	"github.com/crisp-cri/crisp/internal/crilog"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/logctx"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/server/nri"
	"github.com/crisp-cri/crisp/server/selinux"
	"github.com/crisp-cri/crisp/server/spec"
)

// CreateContainer prepares a container in a ready sandbox. The work goes on without the caller;
// a repeated request joins it (see creations).
//
// The sandbox keeps the configuration it was created with; the copy in the request is the same
// in everything that a container may depend on.
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
	id, err := s.containers.do(ctx, name, same, func(ctx context.Context, cr *creation) error {
		from, err := s.originOf(config)
		if err != nil {
			return err
		}
		return s.newDraft(cr, sb, config, from).create(ctx)
	})
	if err != nil {
		return nil, err
	}
	return &cri.CreateContainerResponse{ContainerId: id}, nil
}

// repeatedContainer returns what the repetition of a request whose answer was lost has in common
// with it: all but the order of what the kubelet takes from maps, and the file of the termination
// message, which has a new name each time.
func repeatedContainer(config *cri.ContainerConfig) *cri.ContainerConfig {
	same := proto.CloneOf(config)
	slices.SortStableFunc(same.Envs, func(a, b *cri.KeyValue) int { return cmp.Compare(a.GetKey(), b.GetKey()) })
	slices.SortFunc(same.Devices, func(a, b *cri.Device) int { return cmp.Compare(a.GetContainerPath(), b.GetContainerPath()) })
	slices.SortFunc(same.CDIDevices, func(a, b *cri.CDIDevice) int { return cmp.Compare(a.GetName(), b.GetName()) })
	for _, m := range same.Mounts {
		if m != nil && m.ContainerPath == config.GetAnnotations()["io.kubernetes.container.terminationMessagePath"] {
			m.HostPath = ""
		}
	}
	return same
}

// sameContainer answers a repeated request from the container that the first
// one made.
func (s *Server) sameContainer(cr *creation, c *oci.Container, sb *oci.Sandbox, config *cri.ContainerConfig) error {
	switch {
	case c.SandboxID() != sb.ID() || !proto.Equal(repeatedContainer(s.index.container(c).config), repeatedContainer(config)):
		return fault.Exists.Errorf("container name %s is taken by container %s with another configuration", cr.name, c.ID())
	case c.Status().State >= oci.Exited:
		return fault.Exists.Errorf("container name %s is taken by container %s, which is %s", cr.name, c.ID(), c.Status().State)
	}
	cr.id, cr.found = c.ID(), true
	return nil
}

// A containerDraft is a container being created. Each step leaves its results here for later
// steps.
type containerDraft struct {
	s      *Server
	cr     *creation
	sb     *oci.Sandbox
	config *cri.ContainerConfig // as the kubelet sent it

	// restored is the checkpoint to restore the processes from; nil = start them.
	restored *restoration

	undo undo.Stack
	turn nri.Turn // begins with the stage "plugins"; the zero Turn before

	handler   Handler
	labels    selinux.Labels
	image     image.Image
	root      string // directory of the root file system
	volumes   []spec.Volume
	mounts    []spec.Mount
	places    *places
	described *cri.ContainerConfig // what the specification is built from: config, unless restored overrides it
	spec      *specs.Spec
	pidTarget string // ID of the container whose PID namespace is joined; "" = none
	logPath   string // "" = no log
	logLimit  crilog.Limit
	record    *containerRecord
}

// newDraft begins a container; it is restored from a checkpoint if from is not nil.
func (s *Server) newDraft(cr *creation, sb *oci.Sandbox, config *cri.ContainerConfig, from *origin) *containerDraft {
	d := &containerDraft{
		s: s, cr: cr, sb: sb, config: config, described: config,
		record: &containerRecord{config: config, resources: config.GetLinux().GetResources()},
	}
	if from != nil {
		d.restored = &restoration{from: from}
	}
	return d
}

// A createStep is one step of creating a container. It begins the stage that it names; following
// steps without a name count towards that stage (see stageLives).
type createStep struct {
	stage string
	do    func(*containerDraft, context.Context) error
}

// createSteps create a container whose processes are started, restoreSteps one whose processes
// are restored.
var createSteps = []createStep{
	{"", (*containerDraft).check},
	{"", (*containerDraft).findImage},
	{"rootfs", (*containerDraft).mountRoot},
	{"volumes", (*containerDraft).makeVolumes},
	{"mounts", (*containerDraft).resolveMounts},
	{"relabel volumes", (*containerDraft).relabel},
	{"spec", (*containerDraft).specify},
	{"plugins", (*containerDraft).notifyCreate},
	{"record", (*containerDraft).persist},
}

// create creates the container. If a step fails, the steps before it are undone.
func (d *containerDraft) create(ctx context.Context) (err error) {
	if c, ok := d.s.runtime.ContainerByName(d.cr.name); ok {
		return d.s.sameContainer(d.cr, c, d.sb, d.config)
	}
	ctx = logctx.With(ctx, "container", d.cr.id, "sandbox", d.sb.ID())
	defer d.undo.RunIf(&err)
	// The turn ends before anything is undone: undoing takes a turn itself.
	defer func() { d.turn.End() }()

	steps := createSteps
	if d.restored != nil {
		steps = restoreSteps
	}
	stepCtx, cancel := ctx, func() {}
	defer func() { cancel() }()
	for _, step := range steps {
		if step.stage != "" {
			cancel()
			stepCtx, cancel = d.cr.enter(ctx, step.stage)
		}
		if err := step.do(d, stepCtx); err != nil {
			return err
		}
	}
	return nil
}

// check refuses a container that does not fit the sandbox.
func (d *containerDraft) check(context.Context) (err error) {
	if st := d.sb.State(); st != oci.SandboxReady {
		return fault.WrongState.Errorf("sandbox %s is %s: cannot create container %s", d.sb.ID(), st, d.config.Metadata.Name)
	}
	// A sandbox whose handler was removed from the configuration gets no more containers.
	if d.handler, err = d.s.handler(d.s.index.sandbox(d.sb).handler); err != nil {
		return err
	}
	if err := sameUserNamespace(d.sb, d.config.GetLinux().GetSecurityContext().GetNamespaceOptions()); err != nil {
		return err
	}
	if d.labels, err = d.s.containerLabels(d.sb, d.config); err != nil {
		return fmt.Errorf("container %s: %w", d.config.Metadata.Name, err)
	}
	if d.logLimit, err = crilog.LimitOf(d.config.Annotations); err != nil {
		return fmt.Errorf("container %s: %w", d.config.Metadata.Name, err)
	}
	return nil
}

// findImage finds the image that the request names; it must be on the node.
func (d *containerDraft) findImage(ctx context.Context) error {
	img, err := d.s.images.Get(d.config.Image.Image)
	if err != nil {
		return fmt.Errorf("image of container %s: %w", d.config.Metadata.Name, err)
	}
	// The error begins with the reason, which the kubelet recognizes.
	if err := d.s.allowImage(ctx, d.sb, d.config.Image, img); err != nil {
		return err
	}
	return d.useImage(img)
}

// useImage records which image the container is made from.
func (d *containerDraft) useImage(img image.Image) (err error) {
	d.image = img
	asked := d.config.Image
	d.record.imageID, d.record.imageRef = img.ID, imageRef(img, cmp.Or(asked.GetUserSpecifiedImage(), asked.GetImage()))
	d.record.signal, err = stopSignal(d.config.StopSignal, img.Config.Config.StopSignal)
	return err
}

func (d *containerDraft) mountRoot(ctx context.Context) (err error) {
	o := rootfs.MountOptions{Label: d.labels.Mount, Points: mountsFiles(d.config.Mounts)}
	if d.root, err = d.s.mountImage(ctx, d.sb, d.cr.id, d.image.ID, o); err != nil {
		return fmt.Errorf("mount root file system: %w", err)
	}
	d.undo.Add("root file system", d.s.unmount(ctx, d.cr.id))
	return nil
}

// specify builds the OCI specification from the results of the steps before.
func (d *containerDraft) specify(ctx context.Context) (err error) {
	if d.spec, err = d.buildSpec(ctx); err != nil {
		return err
	}
	pod := d.s.index.sandbox(d.sb)
	annotate(d.spec, d.handler, d.sb, pod, d.record)
	if err := d.s.checkProfile(ctx, d.spec); err != nil {
		return err
	}
	if d.logPath, err = makeLogDir(pod.config.LogDirectory, d.config.LogPath); err != nil {
		return err
	}
	d.pidTarget, err = d.s.pidTarget(d.sb, d.config)
	return err
}

// persist writes the container's record and then makes the container visible.
func (d *containerDraft) persist(ctx context.Context) error {
	if err := d.handler.check(d.spec); err != nil {
		return err
	}
	if err := shimRefuses(d.handler, spec.RawEnv(d.spec.Process)); err != nil {
		return fmt.Errorf("container %s: %w", d.config.Metadata.Name, err)
	}
	extra, err := d.record.encode()
	if err != nil {
		return err
	}
	c, err := d.s.runtime.Create(ctx, oci.ContainerConfig{
		ID: d.cr.id, Name: d.cr.name, SandboxID: d.sb.ID(),
		Spec: d.spec, Env: spec.RawEnv(d.spec.Process), PIDTarget: d.pidTarget,
		Stdin: d.config.Stdin, StdinOnce: d.config.StdinOnce, TTY: d.config.Tty,
		LogPath: d.logPath, LogLimit: d.logLimit, Engine: d.handler.Engine, Restore: d.restored.directory(), Extra: extra,
	})
	if err != nil {
		return err
	}
	d.s.index.containers.Store(c.ID(), d.record)
	d.s.index.dropRemoved(c)
	d.s.notifyCreated(ctx, d.turn, c)
	d.cr.discard = func(ctx context.Context) error { return d.s.removeContainer(ctx, c) }
	return nil
}

// unmount returns the step that undoes a mount.
func (s *Server) unmount(ctx context.Context, key string) func() error {
	return func() error {
		ctx, cancel := undo.Context(ctx)
		defer cancel()
		return s.rootfs.Unmount(ctx, key, true)
	}
}

// imageRef returns ContainerStatus.image_ref: a digest by which the image can be pulled again,
// or the ID of an image that was never in a registry. If several repositories have the image, it
// prefers the one that was asked for.
func imageRef(img image.Image, asked string) string {
	if len(img.Digests) == 0 {
		return img.ID
	}
	repository := repositoryOf(asked)
	for _, digest := range img.Digests {
		of, _, _ := strings.Cut(digest, "@")
		if of == repository || repository != "" && strings.HasSuffix(of, "/"+repository) {
			return digest
		}
	}
	return img.Digests[0]
}

// repositoryOf takes tag and digest off the name of an image.
func repositoryOf(name string) string {
	name, _, _ = strings.Cut(name, "@")
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		name = name[:i]
	}
	return name
}

// pidTarget returns the container whose PID namespace the new one joins. The start of the
// container checks it again.
//
// CRI: "This container must have been previously created in the same pod."
func (s *Server) pidTarget(sb *oci.Sandbox, config *cri.ContainerConfig) (string, error) {
	o := config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	if o.GetPid() != cri.NamespaceMode_TARGET {
		return "", nil
	}
	if shim := sb.Config().Shim; shim != nil {
		return "", fault.Invalid.Errorf("target of the PID namespace: handler %q: containers of %s can join that of the sandbox alone", s.index.sandbox(sb).handler, shim.Path)
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

// makeLogDir returns the absolute path of a log and creates its directory.
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

// allowImage checks an image in the store against the policy of the pod's namespace. The image
// may have been pulled under another policy, and the kubelet requests a pull only if the image
// is missing. The signatures that came with the pull decide.
//
// The kubelet sends the image's ID together with the name in the pod; crictl sends what its user
// typed. If there is only an ID, the policy is evaluated for each of the image's names.
func (s *Server) allowImage(ctx context.Context, sb *oci.Sandbox, spec *cri.ImageSpec, img image.Image) error {
	name := cmp.Or(spec.UserSpecifiedImage, spec.Image)
	return s.images.Allowed(ctx, s.index.sandbox(sb).config.GetMetadata().GetNamespace(), name, img.ID)
}
