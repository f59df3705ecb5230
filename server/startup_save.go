package server

import (
	"path/filepath"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/timeline"
	"github.com/crisp-cri/crisp/oci"
)

// startupFile is what is known of where a pod's time went, in the directory of its sandbox that a reboot
// voids: that is in memory as a rule, and after a reboot no pod runs any more.
const startupFile = "startup.json"

// saveStartup keeps the stages of a sandbox's pod for the next crispd, after a call that was one of them.
// It is only for who asks: an error is of no consequence.
func (s *Server) saveStartup(c call, resp any) {
	id := c.step.sandbox
	if r, ok := resp.(*cri.RunPodSandboxResponse); ok {
		id = r.GetPodSandboxId()
	}
	sb, err := s.runtime.Sandbox(id)
	if err != nil || sb.State() != oci.SandboxReady { // else the directory may be going
		return
	}
	list, _ := s.startups.recorder.Save(c.step.pod.UID)
	if err := timeline.WriteFile(filepath.Join(sb.RunDir(), startupFile), timeline.Saved{Pod: c.step.pod, Stages: list}); err != nil {
		s.log.Debug("start of a pod not kept", "sandbox", id, "err", err)
	}
}

// restoreStartups takes in what an earlier crispd has saved.
func (s *Server) restoreStartups() {
	for _, sb := range s.runtime.Sandboxes() {
		saved, err := timeline.ReadFile(filepath.Join(sb.RunDir(), startupFile))
		if m := s.index.sandbox(sb).config.GetMetadata(); err == nil && saved.Pod.UID == m.GetUid() {
			s.startups.recorder.Restore(saved.Pod, saved.Stages)
		}
	}
}
