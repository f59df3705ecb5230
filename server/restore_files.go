package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/checkpoint"
	"github.com/crisp-cri/crisp/image/rootfs"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci"
)

func (s *Server) copyCheckpoint(ctx context.Context, id string, sb *oci.Sandbox, config *cri.ContainerConfig, r *restoration) (err error) {
	most, err := room(r.dir)
	if err != nil {
		return err
	}
	switch {
	case r.from.archive != "":
		f, err := checkpoint.OpenFile(filepath.Dir(r.from.archive), filepath.Base(r.from.archive))
		if errors.Is(err, fault.NotFound) {
			return fault.NotFound.Errorf("checkpoint archive %s does not exist", r.from.archive)
		}
		if err != nil {
			return err
		}
		defer f.Close()
		return checkpoint.Unpack(ctx, f, r.dir, most)
	case r.from.dir != "":
		return checkpoint.Copy(ctx, r.from.dir, r.dir, most)
	}
	img, err := s.images.Get(r.from.image)
	if err != nil {
		return err
	}
	if err := s.allowImage(ctx, sb, config.Image, img); err != nil {
		return err
	}
	key := id + "-checkpoint"
	dir, err := s.rootfs.Mount(ctx, key, img.ID, rootfs.MountOptions{ReadOnly: true})
	if err != nil {
		return fmt.Errorf("mount checkpoint image: %w", err)
	}
	defer func() { err = errors.Join(err, s.unmount(ctx, key)()) }()
	return checkpoint.Copy(ctx, dir, r.dir, most)
}

func (s *Server) change(ctx context.Context, id string, r *restoration) error {
	most, err := room(r.dir)
	if err != nil {
		return err
	}
	removed, err := checkpoint.PlainDiff(ctx, r.dir, most)
	if err != nil {
		return err
	}
	if len(removed) > 0 {
		if err := s.rootfs.Apply(ctx, id, strings.NewReader(""), removed); err != nil {
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
	if err := s.rootfs.Apply(ctx, id, diff, deleted); err != nil {
		return err
	}
	for _, name := range []string{checkpoint.RootFSDiff, checkpoint.DeletedFiles} {
		if err := os.Remove(filepath.Join(r.dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// fillShm copies the files of the original's /dev/shm to the sandbox's; it keeps existing files.
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
