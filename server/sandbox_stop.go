package server

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/logctx"
	"github.com/crisp-cri/crisp/internal/stage"
	"github.com/crisp-cri/crisp/oci"
)

// StopPodSandbox kills what runs in a sandbox and releases its network.
//
// CRI: "This call is idempotent, and must not return an error if all relevant
// resources have already been reclaimed." An unknown sandbox counts as stopped.
func (s *Server) StopPodSandbox(ctx context.Context, req *cri.StopPodSandboxRequest) (*cri.StopPodSandboxResponse, error) {
	sb, err := s.runtime.Sandbox(req.PodSandboxId)
	if errors.Is(err, fault.NotFound) {
		return &cri.StopPodSandboxResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := s.tasks.do(ctx, "stop of sandbox "+sb.ID(), func(ctx context.Context) error { return s.stopSandbox(ctx, sb) }); err != nil {
		return nil, fmt.Errorf("stop sandbox %s: %w", sb.ID(), err)
	}
	return &cri.StopPodSandboxResponse{}, nil
}

// stopSandbox takes sb to NotReady. Each step may have been done before: by a call that failed
// at a later step, or by an earlier crispd.
func (s *Server) stopSandbox(ctx context.Context, sb *oci.Sandbox) error {
	ctx = logctx.With(ctx, "sandbox", sb.ID())
	known := sb.State() == oci.SandboxReady || sb.State() == oci.SandboxStopping
	if err := sb.BeginStop(); err != nil && !errors.Is(err, fault.WrongState) {
		return err // WrongState: it is being removed, which stops it too
	}
	s.interfaces.closeOne(sb.ID())
	stage.Next(ctx, "kill")
	// The kubelet has stopped the containers with grace; another client that has not did not
	// want grace.
	if err := s.killAll(ctx, sb.Containers()); err != nil {
		return err
	}
	if known {
		stage.Next(ctx, "plugins")
		s.notifyStop(ctx, sb)
	}
	stage.Next(ctx, "shim")
	if err := sb.EndShim(ctx); err != nil { // it uses the network
		return fmt.Errorf("end shim: %w", err)
	}
	rec := s.index.sandbox(sb)
	if known {
		if err := s.closePorts(ctx, sb, rec); err != nil {
			return err
		}
	}
	if !sb.Config().HostNetwork {
		stage.Next(ctx, "cni")
		if err := s.networkOf(rec.handler).Detach(ctx, networkPod(sb, rec)); err != nil {
			return fmt.Errorf("detach network: %w", err)
		}
	}
	stage.Next(ctx, "namespaces")
	if err := sb.Unpin(ctx); err != nil {
		return fmt.Errorf("release namespaces: %w", err)
	}
	if sb.State() == oci.SandboxRemoving {
		return nil
	}
	if rec.addresses() != nil {
		err := s.index.editSandbox(sb, func(r *sandboxRecord) { r.detached = true })
		switch {
		case atomicfile.IsFull(err):
			// The sandbox must still be stopped, or it could not be removed to make room. Its
			// status keeps the addresses; after a restart the stop is repeated.
			s.log.WarnContext(ctx, "addresses of a stopped sandbox were not removed", "err", err)
		case err != nil:
			return err
		}
	}
	return sb.Stopped()
}

// killAll kills containers in parallel and returns when all have exited and plugins have been
// notified.
func (s *Server) killAll(ctx context.Context, list []*oci.Container) error {
	errs := make([]error, len(list))
	var wg sync.WaitGroup
	for i, c := range list {
		wg.Go(func() {
			if err := c.Stop(ctx, unix.SIGKILL, 0); err != nil {
				errs[i] = fmt.Errorf("kill container %s: %w", c.ID(), err)
				return
			}
			s.notifyExit(ctx, c)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
