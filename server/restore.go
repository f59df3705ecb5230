package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

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
// executing. They lie in the container's directory from CreateContainer on, so that
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
	dir    string // of our copy
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
	own := filepath.Join(s.o.Root, "containers", cr.id)
	r := &restoration{from: from, dir: filepath.Join(own, "restore")}
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return nil, err
	}
	steps.Add("checkpoint", func() error { return os.RemoveAll(own) })
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

func (s *Server) copyCheckpoint(ctx context.Context, id string, sb *oci.Sandbox, config *cri.ContainerConfig, r *restoration) (err error) {
	limit, err := room(r.dir)
	if err != nil {
		return err
	}
	switch {
	case r.from.archive != "":
		f, err := checkpoint.OpenFile(filepath.Dir(r.from.archive), filepath.Base(r.from.archive))
		if errors.Is(err, fault.NotFound) {
			return fault.NotFound.Errorf("there is no checkpoint archive %s", r.from.archive)
		}
		if err != nil {
			return err
		}
		defer f.Close()
		return checkpoint.Unpack(ctx, f, r.dir, limit)
	case r.from.dir != "":
		return checkpoint.Copy(ctx, r.from.dir, r.dir, limit)
	}
	img, err := s.images.Get(r.from.image)
	if err != nil {
		return err
	}
	if err := s.allowImage(ctx, sb, config.Image, img); err != nil {
		return err
	}
	key := id + "-checkpoint"
	dir, err := s.images.MountReadOnly(ctx, key, img.ID)
	if err != nil {
		return fmt.Errorf("mount checkpoint image: %w", err)
	}
	defer func() { err = errors.Join(err, s.unmount(ctx, key)()) }()
	return checkpoint.Copy(ctx, dir, r.dir, limit)
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

// imageOf is the image of a container that is not restored.
func (s *Server) imageOf(ctx context.Context, sb *oci.Sandbox, config *cri.ContainerConfig) (image.Image, error) {
	img, err := s.images.Get(config.Image.Image)
	if err != nil {
		return img, fmt.Errorf("image of container %s: %w", config.Metadata.Name, err)
	}
	// What it says begins with the reason that the kubelet knows.
	return img, s.allowImage(ctx, sb, config.Image, img)
}

// baseImage finds the image of the original, and pulls it if it is not there; for a
// checkpoint image it asks a registry whether the pod may have it.
// That of a pod is the one that the request names, and must be the original's.
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
			continue // a tag that stands for another image by now
		}
		if err == nil {
			break
		}
	}
	as := image.Caller{Namespace: s.index.sandbox(sb).config.GetMetadata().GetNamespace()}
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

// mayPull has a registry say that img, which is on the node, may be had by as: a
// checkpoint image names whatever it likes, and that somebody else has pulled that
// gives nobody a right to it. One that never was in a registry the administrator has
// loaded, for all.
func (s *Server) mayPull(ctx context.Context, img image.Image, as image.Caller) error {
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

// imageID is ref as an ID of ours, "" if it is none.
func imageID(ref string) string {
	hex := strings.TrimPrefix(ref, "sha256:")
	if len(hex) == 64 && strings.Trim(hex, "0123456789abcdef") == "" {
		return "sha256:" + hex
	}
	return ""
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

// change makes the original's changes in the new root file system.
func (s *Server) change(ctx context.Context, id string, r *restoration) error {
	limit, err := room(r.dir)
	if err != nil {
		return err
	}
	removed, err := checkpoint.PlainDiff(ctx, r.dir, limit)
	if err != nil {
		return err
	}
	if len(removed) > 0 {
		if err := s.images.Apply(ctx, id, strings.NewReader(""), removed); err != nil {
			return err
		}
	}
	var deleted []string
	if err := checkpoint.Read(r.dir, checkpoint.DeletedFiles, &deleted); err != nil && !errors.Is(err, fault.NotFound) {
		return err
	}
	diff, err := checkpoint.OpenFile(r.dir, checkpoint.RootFSDiff)
	if errors.Is(err, fault.NotFound) {
		diff, err = os.Open(os.DevNull) // an empty stream
	}
	if err != nil {
		return err
	}
	defer diff.Close()
	if err := s.images.Apply(ctx, id, diff, deleted); err != nil {
		return err
	}
	for _, name := range []string{checkpoint.RootFSDiff, checkpoint.DeletedFiles} {
		if err := os.Remove(filepath.Join(r.dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// fillShm puts the files that the original had in /dev/shm into the sandbox's; one
// that is there already stays.
func fillShm(ctx context.Context, sb *oci.Sandbox, dir string) error {
	f, err := checkpoint.OpenFile(dir, checkpoint.DevShm)
	if errors.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if sb.Config().HostIPC {
		return nil // the host's is not ours to fill
	}
	return checkpoint.UnpackFiles(ctx, f, sb.ShmDir())
}
