package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/checkpoint"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/stage"
	"github.com/crisp-cri/crisp/oci"
)

// checkpointTimeout is the "default" that CRI leaves to the runtime when CheckpointContainer has
// no timeout: the kubelet's own timeout for most calls.
const checkpointTimeout = 2 * time.Minute

// CheckpointContainer writes an archive with the state of a running container, which keeps
// running. The archive appears at the location complete, or not at all.
func (s *Server) CheckpointContainer(ctx context.Context, req *cri.CheckpointContainerRequest) (*cri.CheckpointContainerResponse, error) {
	c, err := s.runtime.Container(req.ContainerId)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(filepath.Dir(req.Location))
	switch {
	case !filepath.IsAbs(req.Location):
		return nil, fault.Invalid.Errorf("location %q is not absolute", req.Location)
	case err != nil:
		return nil, fault.Invalid.Errorf("location: %w", err)
	case !info.IsDir():
		return nil, fault.Invalid.Errorf("location %s is not in a directory", req.Location)
	case req.Timeout < 0:
		return nil, fault.Invalid.Errorf("timeout of %d s", req.Timeout)
	}
	if at, err := os.Lstat(req.Location); err == nil && !at.Mode().IsRegular() {
		return nil, fault.Invalid.Errorf("location %s exists and is not a regular file", req.Location)
	}
	if err := s.mayCheckpoint(c); err != nil {
		return nil, err
	}
	sb, err := s.runtime.Sandbox(c.SandboxID())
	if err != nil {
		return nil, err
	}
	timeout := checkpointTimeout
	if req.Timeout > 0 {
		timeout = time.Duration(req.Timeout) * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := s.checkpointContainer(ctx, sb, c, req.Location); err != nil {
		return nil, overdue(ctx, fmt.Errorf("checkpoint container %s%s: %w", c.ID(), s.byShim(sb), err))
	}
	return &cri.CheckpointContainerResponse{}, nil
}

func (s *Server) checkpointContainer(ctx context.Context, sb *oci.Sandbox, c *oci.Container, location string) (err error) {
	dir := filepath.Join(s.checkpointDir(), oci.NewID())
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	stage.Next(ctx, "freeze")
	f, err := s.runtime.Freeze(ctx, []*oci.Container{c}, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	err = fault.Protect(func() error { // they must be thawed
		if err := s.dump(ctx, f, c, dir); err != nil {
			return err
		}
		return dumpShm(ctx, sb, dir)
	})
	if err := errors.Join(err, f.Thaw(ctx)); err != nil {
		return err
	}
	stage.Next(ctx, "archive")
	return checkpoint.Pack(ctx, dir, location)
}
