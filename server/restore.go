package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/checkpoint"
	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci"
)

// This file creates containers from checkpoints of processes:
//
//	CreateContainer, image is a path              an archive, ours or another runtime's
//	CreateContainer, image is a checkpoint image  the same, as the only layer of an image
//	RestorePod                                    ours
//
// Such a container is created like any other, from the original's image and the request. Then
// the original's changes are applied to its root file system, and oci gets the directory of
// CRIU's files, or a shim's own: StartContainer restores instead of executing. CreateContainer copies these files
// into a directory of oci's, so that the caller's checkpoint is no longer needed and a restart
// of crispd changes nothing.
//
// The user, capabilities, seccomp filter and mounts of a restored process cannot be changed. A
// request that differs from the checkpoint's description is refused; but CRIU's own files
// decide, and they can contain anything. So images, which whoever may create a pod can choose, are
// restored only if Options.RestoreFromImages is set. Paths and directories come only from those who
// can use crispd's socket: the kubelet does not accept a path as an image.

// checkpointAnnotations are the manifest annotations by which Podman, CRI-O and checkpointctl
// mark an image as a container's checkpoint.
var checkpointAnnotations = []string{
	"org.criu.checkpoint.container.name",
	"io.kubernetes.cri-o.annotations.checkpoint.name",
}

// An origin says where a new container's processes come from; nil = they are started.
type origin struct {
	archive string // path
	image   string // ID of a checkpoint image
	dir     string // directory of a container in a pod's checkpoint
}

// blame adds the container and its checkpoint to an error. A PullError stays outermost, because
// its text must come first.
func (o *origin) blame(config *cri.ContainerConfig, err error) error {
	if _, ok := errors.AsType[*registry.PullError](err); ok {
		return err
	}
	return fmt.Errorf("container %s from checkpoint %s: %w", config.Metadata.Name, cmp.Or(o.archive, o.image, o.dir), err)
}

// A restoration is a checkpoint from which a container is being created.
type restoration struct {
	from   *origin
	dir    string // of our copy, which belongs to oci
	was    checkpoint.Container
	spec   specs.Spec // the original's
	mine   bool       // made by crisp
	base   image.Image
	imaged *cri.ImageSpec // the original's
}

// originOf returns the origin that an image's name refers to; nil for an ordinary image.
func (s *Server) originOf(config *cri.ContainerConfig) (*origin, error) {
	name := config.GetImage().GetImage()
	if filepath.IsAbs(name) { // no image's name is an absolute path
		return &origin{archive: name}, nil
	}
	img, err := s.images.Get(name)
	if err != nil {
		return nil, nil // findImage reports the error
	}
	if !slices.ContainsFunc(checkpointAnnotations, func(key string) bool { return img.Annotations[key] != "" }) {
		return nil, nil
	}
	if !s.current.Load().RestoreFromImages {
		return nil, fault.WrongState.Errorf("container %s: image %s is the checkpoint of a container, and restore_from_images is off in crispd's configuration",
			config.Metadata.Name, name)
	}
	return &origin{image: img.ID}, nil
}

// restoreSteps are createSteps with the additions and replacements for a restore.
var restoreSteps = []createStep{
	{"", (*containerDraft).check},
	{"", (*containerDraft).checkRestorable},
	{"checkpoint", (*containerDraft).fetchCheckpoint},
	{"image", (*containerDraft).findOriginalImage},
	{"rootfs", (*containerDraft).mountRoot},
	{"", (*containerDraft).repeatChanges},
	{"volumes", (*containerDraft).makeVolumes},
	{"mounts", (*containerDraft).resolveMounts},
	{"relabel volumes", (*containerDraft).relabel},
	{"spec", (*containerDraft).specify},
	{"plugins", (*containerDraft).notifyCreate},
	{"", (*containerDraft).fitCheckpoint},
	{"record", (*containerDraft).persist},
}

func (d *containerDraft) checkRestorable(context.Context) error {
	if by := d.handler.Engine; by != "" {
		return fault.Invalid.Errorf("container %s: handler runs containers by %s, and no OCI runtime is asked to restore", d.config.Metadata.Name, by)
	}
	if d.sb.Config().IDs != nil {
		return fault.Invalid.Errorf("container %s: nothing can be restored into a user namespace", d.config.Metadata.Name)
	}
	return nil
}

// fetchCheckpoint copies the checkpoint and reads its description.
func (d *containerDraft) fetchCheckpoint(ctx context.Context) error {
	r := d.restored
	dir, drop, err := d.s.runtime.RestoreDir(d.cr.id)
	if err != nil {
		return err
	}
	d.undo.Add("checkpoint", drop)
	r.dir = dir
	if err := d.s.copyCheckpoint(ctx, d.cr.id, d.sb, d.config, r); err != nil {
		return r.from.blame(d.config, err)
	}
	if err := r.read(); err != nil {
		return r.from.blame(d.config, err)
	}
	return nil
}

func (d *containerDraft) findOriginalImage(ctx context.Context) error {
	r := d.restored
	if err := d.s.baseImage(ctx, d.sb, d.config, r); err != nil {
		return err
	}
	d.described, d.record.original = r.describe(d.config), r.imaged
	return d.useImage(r.base)
}

func (d *containerDraft) repeatChanges(ctx context.Context) error {
	if err := d.s.change(ctx, d.cr.id, d.restored); err != nil {
		return fmt.Errorf("restore root file system: %w", err)
	}
	return nil
}

// fitCheckpoint adds to the specification what no request can say, refuses a container that the
// original's processes do not fit, and fills the sandbox's /dev/shm.
func (d *containerDraft) fitCheckpoint(ctx context.Context) error {
	r := d.restored
	if err := errors.Join(r.complete(d.spec, d.sb), r.fit(d.spec)); err != nil {
		return fmt.Errorf("restore container %s: %w", d.config.Metadata.Name, err)
	}
	if err := fillShm(ctx, d.sb, r.dir); err != nil {
		return fmt.Errorf("restore /dev/shm: %w", err)
	}
	return nil
}

func (r *restoration) read() error {
	if err := checkpoint.Read(r.dir, checkpoint.ConfigDump, &r.was); err != nil {
		return fault.Invalid.Errorf("%v", err)
	}
	if err := checkpoint.Read(r.dir, checkpoint.SpecDump, &r.spec); err != nil {
		return fault.Invalid.Errorf("%v", err)
	}
	if r.spec.Process == nil || len(r.spec.Process.Args) == 0 || r.spec.Linux == nil || r.spec.Root == nil {
		return fault.Invalid.Errorf("%s of the checkpoint has no process, root or linux", checkpoint.SpecDump)
	}
	var own containerDump
	err := checkpoint.Read(r.dir, checkpoint.CrispDump, &own)
	if errors.Is(err, fault.NotFound) {
		return nil
	}
	if err == nil && own.Version != dumpVersion {
		err = fault.Invalid.Errorf("%s of the checkpoint is of version %d, not %d", checkpoint.CrispDump, own.Version, dumpVersion)
	}
	r.mine = true
	return err
}

// describe returns the configuration to build the specification from: the request's, with the
// original's process unless the request has to name one.
func (r *restoration) describe(config *cri.ContainerConfig) *cri.ContainerConfig {
	if r.from.dir != "" {
		return config
	}
	original := proto.Clone(config).(*cri.ContainerConfig)
	original.Image, original.Command, original.Args, original.WorkingDir = r.imaged, r.spec.Process.Args, nil, r.spec.Process.Cwd
	return original
}

// directory returns the directory of CRIU's files; "" without a checkpoint.
func (r *restoration) directory() string {
	if r == nil {
		return ""
	}
	return r.dir
}

// baseImage finds the image of the original, and pulls it if it is missing; for a checkpoint
// image it asks a registry whether the pod may have it. For a pod's checkpoint it is the image
// that the request names, which must be the original's.
func (s *Server) baseImage(ctx context.Context, sb *oci.Sandbox, config *cri.ContainerConfig, r *restoration) (err error) {
	names := slices.DeleteFunc([]string{r.was.RootfsImageRef, r.was.RootfsImageName, r.was.RootfsImage}, func(n string) bool { return n == "" })
	if r.from.dir != "" {
		names = []string{config.Image.Image}
	}
	if len(names) == 0 {
		return fault.Invalid.Errorf("the checkpoint does not say which image its container had")
	}
	id := imageID(r.was.RootfsImageRef)
	for i, name := range names {
		r.base, err = s.images.Get(name)
		if err == nil && id != "" && r.base.ID != id && i < len(names)-1 {
			continue // the tag now refers to another image
		}
		if err == nil {
			break
		}
	}
	as := registry.Caller{Namespace: s.index.sandbox(sb).config.GetMetadata().GetNamespace()}
	switch {
	case errors.Is(err, fault.NotFound):
		if r.base, err = s.images.Pull(ctx, names[len(names)-1], as); err != nil {
			return err
		}
	case err != nil:
		return fmt.Errorf("image of the checkpoint: %w", err)
	case r.from.image != "":
		if err := s.mayPull(ctx, r.base, as); err != nil {
			return err
		}
	}
	if id != "" && r.base.ID != id {
		return fault.Invalid.Errorf("the checkpoint is of a container of image %s, and %s is another one: %s", id, names[len(names)-1], r.base.ID)
	}
	r.imaged = config.Image
	if r.from.dir == "" {
		r.imaged = &cri.ImageSpec{Image: names[len(names)-1]}
	}
	return s.allowImage(ctx, sb, r.imaged, r.base)
}

// mayPull asks a registry whether as may have img, which is on the node: a checkpoint image can
// name any image, and another client's pull does not entitle its pod to it. An image that was never
// in a registry was loaded by the administrator, for all pods.
func (s *Server) mayPull(ctx context.Context, img image.Image, as registry.Caller) error {
	var first error
	for _, name := range img.Digests {
		got, err := s.images.Pull(ctx, name, as)
		if err == nil && got.ID == img.ID {
			return nil
		}
		if err == nil {
			err = fault.Invalid.Errorf("image of the checkpoint: %s is %s, not %s", name, got.ID, img.ID)
		}
		first = cmp.Or(first, err)
	}
	return first
}

// imageID returns ref in full if it is an image ID, else "".
func imageID(ref string) string {
	hex := strings.TrimPrefix(ref, "sha256:")
	if len(hex) == 64 && strings.Trim(hex, "0123456789abcdef") == "" {
		return "sha256:" + hex
	}
	return ""
}
