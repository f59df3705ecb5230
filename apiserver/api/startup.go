package api

import (
	"net/http"
	"slices"
	"time"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/apiserver/startup"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/waterfall"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// startup answers with the timeline of one pod's start: the agent's stages, and those that the
// runtime reports. A runtime that reports none is no error.
func (s *Server) startup(w http.ResponseWriter, r *http.Request) error {
	o, err := s.Find(r, podKind)
	if err != nil {
		return err
	}
	pod := o.(*v1.Pod)
	report, ok := s.o.Startup.Of(pod.UID)
	if !ok {
		return fault.NotFound.Errorf("pod %s/%s has started before the agent has", pod.Namespace, pod.Name)
	}
	if s.o.Runtime.Connected() {
		own := criruntime.Startup(r.Context(), s.o.Runtime.Runtime(), string(pod.UID))
		report.Stages = waterfall.Join(report.Stages, own, time.Now())
	}
	return Write(w, http.StatusOK, report)
}

// startups answers with the timelines of the starts of all pods that have not ended, without the
// runtime's stages.
func (s *Server) startups(w http.ResponseWriter, _ *http.Request) error {
	list := slices.DeleteFunc(s.o.Startup.All(), func(r startup.Report) bool {
		status := s.o.Statuses.Get(types.UID(r.Pod.UID))
		return status != nil && podsync.Terminal(status)
	})
	return Write(w, http.StatusOK, map[string][]startup.Report{"items": list})
}
