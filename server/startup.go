package server

import (
	"bytes"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"sync"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/podtrace"
	"github.com/crisp-cri/crisp/internal/pulls"
	"github.com/crisp-cri/crisp/internal/regular"
	"github.com/crisp-cri/crisp/internal/timeline"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/server/telemetry"
)

// startups records how long the stages of pods' starts took; saveStartup saves that to disk.
type startups struct {
	recorder timeline.Recorder
	outputs  sync.Map // ID of a container → the time.Time of its first output; zero = the log no longer has it
}

// A podStage is a call as a stage of its pod's start.
type podStage struct {
	pod     timeline.Pod
	stage   timeline.Stage
	sandbox string // its ID, if the request names it
	trace   telemetry.Pod
	open    *timeline.Open // nil until enter; an exec is recorded only when it has ended
}

// podStageOf returns the stage of a pod's start that a request represents; the pod's UID is ""
// if there is no pod.
func (s *Server) podStageOf(req any) *podStage {
	switch r := req.(type) {
	case *cri.RunPodSandboxRequest:
		return ofPod(r.GetConfig().GetMetadata(), timeline.Stage{Name: "sandbox"})
	case *cri.PullImageRequest:
		return ofPod(r.GetSandboxConfig().GetMetadata(), timeline.Stage{Name: "pull", Detail: r.GetImage().GetImage()})
	case *cri.CreateContainerRequest:
		return s.ofSandbox("create", r.GetPodSandboxId(), r.GetConfig().GetMetadata())
	case *cri.StartContainerRequest:
		return s.ofContainer("start", r.GetContainerId())
	case *cri.ExecSyncRequest:
		return s.ofContainer("exec", r.GetContainerId())
	}
	return new(podStage)
}

func ofPod(m *cri.PodSandboxMetadata, st timeline.Stage) *podStage {
	// A name that is too long fails the request later: do not record it.
	if m.GetUid() == "" || len(m.Uid) > maxName || len(m.Namespace) > maxName || len(m.Name) > maxName || len(st.Container) > maxName {
		return new(podStage)
	}
	st.Begin = time.Now()
	pod := timeline.Pod{UID: m.Uid, Namespace: m.Namespace, Name: m.Name}
	return &podStage{pod: pod, stage: st, trace: telemetry.Pod{
		Key: podtrace.Key(m.Uid, m.Attempt), Name: pod.String(), First: st.Name == "sandbox",
	}}
}

func (s *Server) ofContainer(name, id string) *podStage {
	c, err := s.runtime.Container(id)
	if err != nil {
		return new(podStage)
	}
	return s.ofSandbox(name, c.SandboxID(), s.index.container(c).config.GetMetadata())
}

func (s *Server) ofSandbox(name, id string, m *cri.ContainerMetadata) *podStage {
	sb, err := s.runtime.Sandbox(id)
	if err != nil {
		return new(podStage)
	}
	st := ofPod(s.index.sandbox(sb).config.GetMetadata(), timeline.Stage{Name: name, Container: m.GetName(), Attempt: m.GetAttempt()})
	st.sandbox = sb.ID()
	return st
}

// enter begins the stage of a call. Execs are too frequent: leave counts them.
func (s *Server) enter(c call) {
	if c.podStage.pod.UID != "" && c.podStage.stage.Name != "exec" {
		c.podStage.open = s.startups.recorder.Begin(c.podStage.pod, c.podStage.stage, c.Stages())
	}
}

// leave ends the stage of a call.
func (s *Server) leave(c call, resp any, err error) {
	st, text := c.podStage.stage, ""
	if c.podStage.pod.UID == "" {
		return
	}
	if err != nil {
		text = err.Error()
	}
	switch st.Name {
	case "exec":
		st.End, st.Err = time.Now(), text
		if r, ok := resp.(*cri.ExecSyncResponse); ok && err == nil && r.GetExitCode() != 0 {
			st.Err = fmt.Sprintf("exit code %d", r.ExitCode)
		}
		s.startups.recorder.Repeat(c.podStage.pod, st)
	case "pull":
		c.podStage.open.End(s.pullDetail(st), text)
	default:
		c.podStage.open.End("", text)
		s.saveStartup(c, resp)
	}
}

// pullDetail describes a finished pull: its image, size and source.
func (s *Server) pullDetail(st timeline.Stage) string {
	for _, p := range s.images.RecentPulls() {
		if p.Same(st.Detail) && !p.Ended.Before(st.Begin) {
			return fmt.Sprintf("%s, %s %s", st.Detail, pulls.Size(p.Bytes), p.Source())
		}
	}
	return st.Detail
}

// firstOutput returns the time of the first record in a container's log; zero without output.
func (s *Server) firstOutput(c *oci.Container) time.Time {
	if at, ok := s.startups.outputs.Load(c.ID()); ok {
		return at.(time.Time)
	}
	f, err := regular.OpenNoLink(c.Config().LogPath)
	if err != nil {
		return time.Time{}
	}
	defer f.Close()
	if c.Config().LogLimit.Size > 0 { // looked up after the file was opened: it may be rotated now
		if old, err := filepath.Glob(c.Config().LogPath + ".*"); err != nil || len(old) > 0 {
			return time.Time{}
		}
	}
	head := make([]byte, 64) // RFC 3339 with nanoseconds has 35 bytes at most
	n, _ := io.ReadFull(f, head)
	stamp, _, ok := bytes.Cut(head[:n], []byte(" "))
	at, err := time.Parse(time.RFC3339Nano, string(stamp))
	if !ok || err != nil {
		return time.Time{}
	}
	s.startups.outputs.Store(c.ID(), at)
	return at
}

// startupOf returns the stages of a sandbox's pod, or only of one container if it is not nil.
func (s *Server) startupOf(sb *oci.Sandbox, only *oci.Container) []timeline.Stage {
	list := s.startups.recorder.Of(s.index.sandbox(sb).config.GetMetadata().GetUid())
	of := make(map[string]*oci.Container)
	for _, c := range sb.Containers() {
		m := s.index.container(c).config.GetMetadata()
		of[fmt.Sprint(m.GetName(), " ", m.GetAttempt())] = c
	}
	var stages []timeline.Stage
	for _, st := range list {
		c := of[fmt.Sprint(st.Container, " ", st.Attempt)]
		if only != nil && c != only {
			continue
		}
		stages = append(stages, st)
		if st.Name != "start" || c == nil || st.End.IsZero() {
			continue
		}
		if at := s.firstOutput(c); !at.IsZero() {
			stages = append(stages, timeline.Stage{Name: timeline.FirstOutput, Container: st.Container, Attempt: st.Attempt, Begin: st.End, End: timeline.Later(st.End, at)})
		}
	}
	return stages
}

func (s *Server) startupOfContainer(c *oci.Container) []timeline.Stage {
	sb, err := s.runtime.Sandbox(c.SandboxID())
	if err != nil {
		return nil // it is being removed
	}
	return s.startupOf(sb, c)
}

// waitsFor returns the pulls under way for a sandbox's pod.
func (s *Server) waitsFor(sb *oci.Sandbox) []pulls.Pull {
	pod := podName(s.index.sandbox(sb).config.GetMetadata())
	return slices.DeleteFunc(s.images.Pulls(), func(p pulls.Pull) bool { return !slices.Contains(p.For, pod) })
}

// forgetStartup drops the stages of a removed sandbox's pod, unless the pod has another sandbox.
func (s *Server) forgetStartup(sb *oci.Sandbox) {
	if !s.runtime.Attempted(sb.Config().Name) {
		s.startups.recorder.Forget(s.index.sandbox(sb).config.GetMetadata().GetUid())
	}
}

// starting returns the pods with calls under way, each with its current stages.
func (s *Server) starting() []map[string]any {
	list := []map[string]any{}
	for pod, stages := range s.startups.recorder.Going() {
		list = append(list, map[string]any{"pod": pod.String(), "uid": pod.UID, "stages": stages})
	}
	return list
}

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
