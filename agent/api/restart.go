package api

import (
	"net/http"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/internal/fault"
	v1 "k8s.io/api/core/v1"
)

// restart has the agent stop containers of a pod, with their hooks and within their
// grace period; they start again as their restart policies say. The query may name
// one container and gracePeriodSeconds. Without a container it is all that run.
func (s *Server) restart(w http.ResponseWriter, r *http.Request) error {
	o, err := s.Find(r, podKind)
	if err != nil {
		return err
	}
	pod := o.(*v1.Pod)
	var grace *time.Duration
	if seconds, err := graceOf(r); err != nil {
		return err
	} else if seconds != nil {
		d := podsync.Seconds(*seconds)
		grace = &d
	}
	if pod.Status.Reason == podsync.StoppedReason {
		return fault.WrongState.Errorf("pod %s/%s is stopped: start it", pod.Namespace, pod.Name)
	}
	container := r.URL.Query().Get("container")
	names, ids := []string{}, []string{}
	for _, status := range pod.Status.ContainerStatuses {
		if (container == "" || status.Name == container) && status.State.Running != nil {
			names, ids = append(names, status.Name), append(ids, podsync.RuntimeID(status.ContainerID))
		}
	}
	if len(ids) == 0 {
		return fault.NotFound.Errorf("pod %s/%s has no such container that runs", pod.Namespace, pod.Name)
	}
	if pod.DeletionTimestamp != nil || !s.o.Workers.Restart(pod, ids, grace) {
		return fault.WrongState.Errorf("pod %s/%s is being deleted", pod.Namespace, pod.Name)
	}
	Write(w, http.StatusAccepted, map[string][]string{"items": names})
	return nil
}
