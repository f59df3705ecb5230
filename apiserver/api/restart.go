package api

import (
	"net/http"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/internal/fault"
	v1 "k8s.io/api/core/v1"
)

// restart makes the agent stop containers of a pod, with their hooks and within their grace period;
// they start again as their restart policies say. The query may have a container's name and
// gracePeriodSeconds. Without a name it stops all running containers, including sidecars.
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
	names, ids := restartable(pod, r.URL.Query().Get("container"))
	if len(ids) == 0 {
		return fault.NotFound.Errorf("pod %s/%s has no such container that runs", pod.Namespace, pod.Name)
	}
	if pod.DeletionTimestamp != nil {
		return fault.WrongState.Errorf("pod %s/%s is being deleted", pod.Namespace, pod.Name)
	}
	if !s.o.Workers.Restart(pod, ids, grace) { // its status is from an earlier agent, or it has just ended
		return fault.Unavailable.Errorf("pod %s/%s has no worker: the runtime has not answered yet, or the pod has gone", pod.Namespace, pod.Name)
	}
	return Write(w, http.StatusAccepted, map[string][]string{"items": names})
}

// restartable returns the names and the runtime's IDs of the running containers and sidecars of a
// pod, or of the one named container.
func restartable(pod *v1.Pod, container string) (names, ids []string) {
	for c := range podsync.Lasting(&pod.Spec) {
		s := podsync.StatusOf(c.Name, pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses)
		if (container == "" || c.Name == container) && s != nil && s.State.Running != nil {
			names, ids = append(names, c.Name), append(ids, podsync.RuntimeID(s.ContainerID))
		}
	}
	return names, ids
}
