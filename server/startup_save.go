package server

import (
	"path/filepath"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/timeline"
	"github.com/crisp-cri/crisp/oci"
)

// startupFile has the stages of a pod's start. It is in the sandbox's state directory, which a
// reboot empties, as it ends every pod.
const startupFile = "startup.json"

// saveStartup saves the stages of a pod's start for the next crispd, after the call c. They are
// diagnostics, so an error is logged only at debug level.
func (s *Server) saveStartup(c call, resp any) {
	id := c.podStage.sandbox
	if r, ok := resp.(*cri.RunPodSandboxResponse); ok {
		id = r.GetPodSandboxId()
	}
	sb, err := s.runtime.Sandbox(id)
	if err != nil || sb.State() != oci.SandboxReady { // else the directory may be about to go
		return
	}
	if err := s.startups.recorder.Keep(c.podStage.pod.UID, filepath.Join(sb.RunDir(), startupFile)); err != nil {
		s.log.Debug("start of a pod not kept", "sandbox", id, "err", err)
	}
}

// restoreStartups loads what an earlier crispd saved.
func (s *Server) restoreStartups() {
	for _, sb := range s.runtime.Sandboxes() {
		saved, err := timeline.ReadFile(filepath.Join(sb.RunDir(), startupFile))
		if m := s.index.sandbox(sb).config.GetMetadata(); err == nil && saved.Pod.UID == m.GetUid() {
			s.startups.recorder.Restore(saved.Pod, saved.Stages)
		}
	}
}
