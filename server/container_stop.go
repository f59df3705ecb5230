package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/stage"
)

// StopContainer stops a container within a grace period.
//
// CRI: "This call is idempotent, and must not return an error if the container
// has already been stopped." An unknown container counts as stopped.
func (s *Server) StopContainer(ctx context.Context, req *cri.StopContainerRequest) (*cri.StopContainerResponse, error) {
	c, err := s.runtime.Container(req.ContainerId)
	if errors.Is(err, fault.NotFound) {
		return &cri.StopContainerResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	sig, ok := linuxSignal(s.index.container(c).signal)
	if !ok {
		sig = unix.SIGTERM
	}
	stage.Next(ctx, "stop")
	if err := c.Stop(ctx, sig, seconds(max(req.Timeout, 0))); err != nil {
		return nil, fmt.Errorf("stop container %s: %w", c.ID(), err)
	}
	stage.Next(ctx, "plugins")
	s.notifyExit(ctx, c)
	return &cri.StopContainerResponse{}, nil
}

// seconds converts CRI's timeouts; one too long for a Duration becomes the longest Duration.
func seconds(n int64) time.Duration {
	return time.Duration(min(n, int64(time.Duration(1<<63-1)/time.Second))) * time.Second
}
