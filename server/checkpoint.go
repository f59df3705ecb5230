package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/crisp-cri/crisp/checkpoint"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/regular"
	"github.com/crisp-cri/crisp/internal/stage"
	"github.com/crisp-cri/crisp/oci"
)

// This file writes the contents of a container's checkpoint, taken alone or with its pod's.
// Package checkpoint defines the archive format.
//
// A container stays frozen from before CRIU reads its memory until its files have been copied,
// so that memory and files belong to the same moment. oci freezes the container and always thaws
// it.

// A containerDump is crisp.dump: what the other files of a checkpoint do not say. Checkpoints of
// other runtimes have no such file.
type containerDump struct {
	Version int
	Config  []byte // cri.ContainerConfig, as the kubelet sent it
	ImageID string
}

// dumpVersion is the version of containerDump and podDump.
const dumpVersion = 1

// checkpointDir is where CheckpointContainer works. What a crash leaves there is
// removed by Start.
func (s *Server) checkpointDir() string { return filepath.Join(s.o.Root, "checkpoints") }

// mayCheckpoint refuses containers that CRIU, or crisp with it, cannot checkpoint. What a shim cannot is
// its own answer.
func (s *Server) mayCheckpoint(c *oci.Container) error {
	if st := c.Status().State; st != oci.Running {
		return fault.WrongState.Errorf("container %s is %s: only a running one can be checkpointed", c.ID(), st)
	}
	if engine := c.Config().Engine; engine != "" {
		return fault.WrongState.Errorf("container %s is run by %s: only libcontainer's can be checkpointed", c.ID(), engine)
	}
	sb, err := s.runtime.Sandbox(c.SandboxID())
	if err != nil {
		return err
	}
	if sb.Config().IDs != nil {
		return fault.WrongState.Errorf("container %s is in a user namespace: it cannot be checkpointed", c.ID())
	}
	return nil
}

// byShim says which handler runs the containers of a sandbox with a shim, for an error.
func (s *Server) byShim(sb *oci.Sandbox) string {
	if sb.Config().Shim == nil {
		return ""
	}
	return fmt.Sprintf(" of handler %q", s.index.sandbox(sb).handler)
}

// dump writes the whole checkpoint of a frozen container into dir, which must be empty.
func (s *Server) dump(ctx context.Context, f *oci.Freeze, c *oci.Container, dir string) error {
	stage.Next(ctx, "dump")
	if err := f.Checkpoint(ctx, c, dir); err != nil {
		return err
	}
	stage.Next(ctx, "files")
	if err := s.dumpFiles(ctx, c, dir); err != nil {
		return fmt.Errorf("copy files of container %s: %w", c.ID(), err)
	}
	if err := s.describe(c, dir); err != nil {
		return fmt.Errorf("describe container %s: %w", c.ID(), err)
	}
	return nil
}

// dumpFiles writes the changes to the root file system, and the log.
func (s *Server) dumpFiles(ctx context.Context, c *oci.Container, dir string) error {
	diff, err := os.OpenFile(filepath.Join(dir, checkpoint.RootFSDiff), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	deleted, err := s.rootfs.Diff(ctx, c.ID(), diff)
	if cerr := diff.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if len(deleted) > 0 {
		if err := checkpoint.Write(dir, checkpoint.DeletedFiles, deleted); err != nil {
			return err
		}
	}
	return copyLog(c.Config().LogPath, filepath.Join(dir, checkpoint.ContainerLog))
}

// copyLog copies a log, if there is one. It follows no symlinks: otherwise a pod that can write
// to its log directory could have any file of the host copied into the archive.
func copyLog(from, to string) error {
	if from == "" {
		return nil
	}
	in, err := regular.OpenNoLink(from)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if errors.Is(err, regular.ErrOther) {
		return fault.WrongState.Errorf("log: %w", err)
	}
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// describe writes what is known about the container. checkpointctl takes names from the
// annotations in the spec.
func (s *Server) describe(c *oci.Container, dir string) error {
	rec := s.index.container(c)
	sb, err := s.runtime.Sandbox(c.SandboxID())
	if err != nil {
		return err
	}
	pod := s.index.sandbox(sb)
	config, err := proto.Marshal(rec.config)
	if err != nil {
		return err
	}
	name := s.containerImage(rec).Image
	if err := checkpoint.Write(dir, checkpoint.ConfigDump, checkpoint.Container{
		ID: c.ID(), Name: c.Config().Name,
		RootfsImage: name, RootfsImageName: name, RootfsImageRef: rec.imageID,
		Runtime: cmp.Or(pod.handler, defaultHandler), CreatedTime: c.CreatedAt(), CheckpointedAt: time.Now(), Restored: c.Config().Restore != "",
	}); err != nil {
		return err
	}
	spec := *c.Config().Spec
	spec.Annotations = containerAnnotations(sb, pod, rec)
	spec.Annotations[criPrefix+"image-name"] = name
	if err := checkpoint.Write(dir, checkpoint.SpecDump, &spec); err != nil {
		return err
	}
	return checkpoint.Write(dir, checkpoint.CrispDump, containerDump{Version: dumpVersion, Config: config, ImageID: rec.imageID})
}

// dumpShm writes the files in the pod's /dev/shm, if any: CRIU treats the mount as external and
// expects its files to be there on restore.
func dumpShm(ctx context.Context, sb *oci.Sandbox, dir string) error {
	if sb.Config().HostIPC {
		return nil
	}
	entries, err := os.ReadDir(sb.ShmDir())
	if errors.Is(err, os.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, checkpoint.DevShm), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = checkpoint.PackFiles(ctx, sb.ShmDir(), f)
	return errors.Join(err, f.Close())
}

// room returns how many bytes a checkpoint may write to the file system of dir: 90% of the free
// space, because a checkpoint can be of any size and the node must keep working.
func room(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return int64(st.Bavail) * st.Bsize / 10 * 9, nil
}

// isEmptyDir refuses anything but an empty directory, given by an absolute
// path.
func isEmptyDir(dir string) error {
	if !filepath.IsAbs(dir) {
		return fault.Invalid.Errorf("output path %q is not absolute", dir)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fault.Invalid.Errorf("output path: %w", err)
	}
	if len(entries) > 0 {
		return fault.Invalid.Errorf("output path %s is not empty", dir)
	}
	return nil
}

// noOptions refuses all options, as none are defined yet. CRI: "The runtime
// must reject unsupported or invalid keys and values rather than silently
// ignore them."
func noOptions(options map[string]string) error {
	for key := range options {
		return fault.Invalid.Errorf("option %q is not known", key)
	}
	return nil
}

func destinations(spec *specs.Spec) map[string]bool {
	set := make(map[string]bool)
	for _, m := range spec.Mounts {
		set[filepath.Clean("/"+strings.TrimSpace(m.Destination))] = true
	}
	return set
}
