package server

import (
	"bytes"
	"fmt"
	"io"
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

// startups is what is known of where pods' time went, see also saveStartup.
type startups struct {
	recorder timeline.Recorder
	outputs  sync.Map // ID of a container → the time.Time of its first output; zero = not to be known any more
}

// A step is a call as a stage of its pod.
type step struct {
	pod     timeline.Pod
	stage   timeline.Stage
	sandbox string // its ID, if the request names it
	trace   telemetry.Pod
	open    *timeline.Open // nil: it is entered when it has ended, if at all
}

// stepOf returns what a request is in the start of which pod; the pod's UID is "" if it is
// of no pod.
func (s *Server) stepOf(req any) *step {
	switch r := req.(type) {
	case *cri.RunPodSandboxRequest:
		return ofPod(r.GetConfig().GetMetadata(), timeline.Stage{Name: "sandbox"})
	case *cri.PullImageRequest:
		return ofPod(r.GetSandboxConfig().GetMetadata(), timeline.Stage{Name: "pull", Detail: r.GetImage().GetImage()})
	case *cri.CreateContainerRequest:
		sb, err := s.runtime.Sandbox(r.GetPodSandboxId())
		if err != nil {
			return new(step)
		}
		m := r.GetConfig().GetMetadata()
		st := ofPod(s.index.sandbox(sb).config.GetMetadata(), timeline.Stage{Name: "create", Container: m.GetName(), Attempt: m.GetAttempt()})
		st.sandbox = sb.ID()
		return st
	case *cri.StartContainerRequest:
		return s.ofContainer("start", r.GetContainerId())
	case *cri.ExecSyncRequest:
		return s.ofContainer("exec", r.GetContainerId())
	}
	return new(step)
}

func ofPod(m *cri.PodSandboxMetadata, st timeline.Stage) *step {
	// A request that names something too long is refused: nothing is kept of it.
	if m.GetUid() == "" || len(m.Uid) > maxName || len(m.Namespace) > maxName || len(m.Name) > maxName || len(st.Container) > maxName {
		return new(step)
	}
	st.Begin = time.Now()
	pod := timeline.Pod{UID: m.Uid, Namespace: m.Namespace, Name: m.Name}
	return &step{pod: pod, stage: st, trace: telemetry.Pod{
		Key: podtrace.Key(m.Uid, m.Attempt), Name: pod.String(), First: st.Name == "sandbox",
	}}
}

func (s *Server) ofContainer(name, id string) *step {
	c, err := s.runtime.Container(id)
	if err != nil {
		return new(step)
	}
	sb, err := s.runtime.Sandbox(c.SandboxID())
	if err != nil {
		return new(step)
	}
	m := s.index.container(c).config.GetMetadata()
	st := ofPod(s.index.sandbox(sb).config.GetMetadata(), timeline.Stage{Name: name, Container: m.GetName(), Attempt: m.GetAttempt()})
	st.sandbox = sb.ID()
	return st
}

// enter begins the stage of a call, unless it is one that is repeated very often.
func (s *Server) enter(c call) {
	if c.step.pod.UID != "" && c.step.stage.Name != "exec" {
		c.step.open = s.startups.recorder.Begin(c.step.pod, c.step.stage, c.Stages())
	}
}

// leave ends the stage of a call.
func (s *Server) leave(c call, resp any, err error) {
	st, text := c.step.stage, ""
	if c.step.pod.UID == "" {
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
		s.startups.recorder.Repeat(c.step.pod, st)
	case "pull":
		c.step.open.End(s.pullDetail(st), text)
	default:
		c.step.open.End("", text)
		s.saveStartup(c, resp)
	}
}

// pullDetail tells of a pull that has ended what its stages do not.
func (s *Server) pullDetail(st timeline.Stage) string {
	for _, p := range s.images.RecentPulls() {
		if p.Same(st.Detail) && !p.Ended.Before(st.Begin) {
			return fmt.Sprintf("%s, %s %s", st.Detail, pulls.Size(p.Bytes), p.Source())
		}
	}
	return st.Detail
}

// firstOutput returns when a container first wrote something, as its log has it; zero if that
// is not known.
func (s *Server) firstOutput(c *oci.Container) time.Time {
	if at, ok := s.startups.outputs.Load(c.ID()); ok {
		return at.(time.Time)
	}
	f, err := regular.OpenNoLink(c.Config().LogPath)
	if err != nil {
		return time.Time{}
	}
	defer f.Close()
	head := make([]byte, 64) // a time has 35 bytes at most
	n, _ := io.ReadFull(f, head)
	stamp, _, ok := bytes.Cut(head[:n], []byte(" "))
	at, err := time.Parse(time.RFC3339Nano, string(stamp))
	if !ok || err != nil {
		return time.Time{}
	}
	s.startups.outputs.Store(c.ID(), at)
	return at
}

// logRotated says that a container's log does not begin with its first output any more.
func (s *Server) logRotated(c *oci.Container) {
	s.startups.outputs.LoadOrStore(c.ID(), time.Time{})
}

// startupOf returns the stages of a sandbox's pod: those of one container, if it is not nil.
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
			stages = append(stages, timeline.Stage{Name: timeline.FirstOutput, Container: st.Container, Attempt: st.Attempt, Begin: st.End, End: later(st.End, at)})
		}
	}
	return stages
}

// startupOfContainer returns the stages of one container.
func (s *Server) startupOfContainer(c *oci.Container) []timeline.Stage {
	sb, err := s.runtime.Sandbox(c.SandboxID())
	if err != nil {
		return nil // it is being removed
	}
	return s.startupOf(sb, c)
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// waitsFor returns the pulls under way that a sandbox's pod waits for.
func (s *Server) waitsFor(sb *oci.Sandbox) []pulls.Pull {
	pod := podName(s.index.sandbox(sb).config.GetMetadata())
	return slices.DeleteFunc(s.images.Pulls(), func(p pulls.Pull) bool { return !slices.Contains(p.For, pod) })
}

// forgetStartup drops what is known of a removed sandbox, if the pod has no other.
func (s *Server) forgetStartup(sb *oci.Sandbox) {
	uid := s.index.sandbox(sb).config.GetMetadata().GetUid()
	for _, other := range s.runtime.Sandboxes() {
		if other.ID() != sb.ID() && s.index.sandbox(other).config.GetMetadata().GetUid() == uid {
			return
		}
	}
	s.startups.recorder.Forget(uid)
}

// starting are the pods that a call is at work for, each with the stage that it is in.
func (s *Server) starting() []map[string]any {
	list := []map[string]any{}
	for pod, stages := range s.startups.recorder.Going() {
		list = append(list, map[string]any{"pod": pod.String(), "uid": pod.UID, "stages": stages})
	}
	return list
}
