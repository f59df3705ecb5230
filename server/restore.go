package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/checkpoint"
	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/oci"
)

// This file makes containers whose processes come from a checkpoint:
//
//	CreateContainer, image is a path              an archive, ours or another runtime's
//	CreateContainer, image is a checkpoint image  the same, as the only layer of an image
//	RestorePod                                    ours
//
// Such a container is made like any other, from the image that the original had
// and what the request says. Then the original's changes are made in its root file
// system, and oci is told where CRIU's files are: StartContainer restores instead of
// executing. They lie in a directory of oci's from CreateContainer on, so that
// nobody else's checkpoint is needed later, and a restart of crispd changes nothing.
//
// What a restored process is cannot be changed: its user, its capabilities, its
// seccomp filter, its mounts. A request that says something else is refused, by what
// the checkpoint says of itself; CRIU's own files, which decide, can say anything.
// So images, which whoever makes a pod chooses, are restored only where
// Options.RestoreFromImages says so. Paths and directories come from those alone who can use
// crispd's socket: the kubelet takes no path for an image.

// checkpointAnnotations are those of a manifest by which Podman, CRI-O and
// checkpointctl say that an image is a container's checkpoint.
var checkpointAnnotations = []string{
	"org.criu.checkpoint.container.name",
	"io.kubernetes.cri-o.annotations.checkpoint.name",
}

// An origin says where a new container's processes come from; nil = they are
// executed.
type origin struct {
	archive string // path
	image   string // ID of a checkpoint image
	dir     string // of a pod's checkpoint
}

// blame says of which container and checkpoint an error is. A PullError stays the
// outermost, because its text must come first.
func (o *origin) blame(config *cri.ContainerConfig, err error) error {
	if _, ok := errors.AsType[*image.PullError](err); ok {
		return err
	}
	return fmt.Errorf("container %s from checkpoint %s: %w", config.Metadata.Name, cmp.Or(o.archive, o.image, o.dir), err)
}

// A restoration is a checkpoint that a container is being made from.
type restoration struct {
	from   *origin
	dir    string // of our copy, which is oci's to keep
	was    checkpoint.Container
	spec   specs.Spec // of the original
	mine   bool       // crisp has made it
	base   image.Image
	imaged *cri.ImageSpec // the original's
}

// createContainer makes the container of a creation, executed or restored.
func (s *Server) createContainer(ctx context.Context, cr *creation, sb *oci.Sandbox, config *cri.ContainerConfig) error {
	from := s.originOf(config)
	if from != nil && from.image != "" && !s.live.Load().RestoreFromImages {
		return fault.WrongState.Errorf("container %s: image %s is the checkpoint of a container, and restore_from_images is off in crispd's configuration",
			config.Metadata.Name, config.Image.Image)
	}
	return s.createFrom(ctx, cr, sb, config, from)
}

// originOf is the origin that the name of an image stands for.
func (s *Server) originOf(config *cri.ContainerConfig) *origin {
	name := config.GetImage().GetImage()
	if filepath.IsAbs(name) { // which no image's name is
		return &origin{archive: name}
	}
	img, err := s.images.Get(name)
	if err != nil {
		return nil // who looks next says so
	}
	for _, key := range checkpointAnnotations {
		if img.Annotations[key] != "" {
			return &origin{image: img.ID}
		}
	}
	return nil
}

// fetch copies the checkpoint that a container is to be restored from, and finds
// the image of the original.
func (s *Server) fetch(ctx context.Context, cr *creation, sb *oci.Sandbox, h Handler, config *cri.ContainerConfig, from *origin, steps *undo.Stack) (*restoration, error) {
	if h.Engine != "" {
		return nil, fault.Invalid.Errorf("container %s: handler runs containers by %s, and only libcontainer can restore", config.Metadata.Name, h.Engine)
	}
	if sb.Config().IDs != nil {
		return nil, fault.Invalid.Errorf("container %s: nothing can be restored into a user namespace", config.Metadata.Name)
	}
	dir, drop, err := s.runtime.RestoreDir(cr.id)
	if err != nil {
		return nil, err
	}
	steps.Add("checkpoint", drop)
	r := &restoration{from: from, dir: dir}
	stage, cancel := cr.enter(ctx, "checkpoint")
	defer cancel()
	if err := s.copyCheckpoint(stage, cr.id, sb, config, r); err != nil {
		return nil, from.blame(config, err)
	}
	if err := r.read(); err != nil {
		return nil, from.blame(config, err)
	}
	stage, cancel = cr.enter(ctx, "image")
	defer cancel()
	return r, s.baseImage(stage, sb, config, r)
}

// read reads what the checkpoint says of itself.
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

// described is the record from which the specification is built: that of the
// request, with the process of the original in it if the request need not say what
// that was.
func (r *restoration) described(rec *containerRecord) *containerRecord {
	if r == nil || r.from.dir != "" {
		return rec
	}
	full := *rec
	full.config = proto.Clone(rec.config).(*cri.ContainerConfig)
	full.config.Image, full.config.Command, full.config.Args, full.config.WorkingDir = r.imaged, r.spec.Process.Args, nil, r.spec.Process.Cwd
	return &full
}

// image is that of the original, for the status; nil without a checkpoint.
func (r *restoration) image() *cri.ImageSpec {
	if r == nil {
		return nil
	}
	return r.imaged
}

// directory is where CRIU's files are; "" without a checkpoint.
func (r *restoration) directory() string {
	if r == nil {
		return ""
	}
	return r.dir
}
