package server

import (
	"context"
	"os"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/internal/logctx"
	"github.com/crisp-cri/crisp/oci"
)

// gcTime limits how long network leftovers may delay the first request.
const gcTime = 10 * time.Second

// Start cleans up after the previous crispd. It must have returned before the first request is
// served.
//
// oci.Open has recovered its own records. Start handles what only the server can relate to each
// other:
//
//	found                              means                     Start does
//	file system without its container  a creation or a removal   release it
//	                                   was cut short
//	network without its sandbox, or    a creation or a removal   CNI GC, now: what is
//	of one that never became ready     was cut short             attached later must stay
//	sandbox being stopped, or not      a stop was cut short, or  stop it again, in the
//	ready and with an address          a reboot stopped it       background: a plugin may hang
//
// A sandbox that was being created is not ready now. The kubelet removes it, like one whose
// rollback failed.
func (s *Server) Start(ctx context.Context) error {
	s.releaseFileSystems(ctx)
	if err := os.RemoveAll(s.checkpointDir()); err != nil {
		s.log.WarnContext(ctx, "leftover checkpoints not removed", "err", err)
	}
	var keep []string
	var half []*oci.Sandbox
	for _, sb := range s.runtime.Sandboxes() {
		s.o.SELinux.Keep(sb.ID(), s.index.sandbox(sb).labels)
		stopping := sb.State() == oci.SandboxStopping || len(s.index.sandbox(sb).addresses()) > 0
		switch {
		case sb.State() == oci.SandboxReady:
			keep = append(keep, sb.ID())
		case stopping:
			keep = append(keep, sb.ID()) // its own stop detaches it, and reports if it cannot
			half = append(half, sb)
		}
	}
	s.restoreStartups()
	s.restorePorts(ctx)
	gc, cancel := context.WithTimeout(ctx, gcTime)
	defer cancel()
	for _, n := range s.networks() {
		if err := n.GC(gc, keep); err != nil {
			s.log.WarnContext(ctx, "leftover networks not released", "err", err)
		}
	}
	for _, sb := range half {
		s.work.start(func() { s.finishStop(sb) })
	}
	return s.startPlugins()
}

// releaseFileSystems releases the mounts that no container owns, or one whose removal was begun:
// oci finishes that. A key is a container's ID, for image mounts followed by the mount's number.
func (s *Server) releaseFileSystems(ctx context.Context) {
	for _, key := range s.rootfs.Mounts() {
		id, _, _ := strings.Cut(key, "-")
		if c, err := s.runtime.Container(id); err == nil && c.Status().State != oci.Removing {
			continue
		}
		if err := s.rootfs.Unmount(ctx, key, true); err != nil {
			s.log.WarnContext(ctx, "leftover file system not released", "container", id, "err", err)
		}
	}
}

// finishStop stops a sandbox whose stop was interrupted. It tries once: the kubelet repeats the
// stop as long as it sees the sandbox.
func (s *Server) finishStop(sb *oci.Sandbox) {
	ctx := logctx.With(s.ctx, "sandbox", sb.ID())
	if err := s.tasks.do(ctx, "stop of sandbox "+sb.ID(), func(ctx context.Context) error { return s.stopSandbox(ctx, sb) }); err != nil {
		s.log.WarnContext(ctx, "half stopped sandbox not stopped", "err", err)
	}
}
