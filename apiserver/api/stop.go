package api

import (
	"net/http"
	"strconv"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/internal/fault"
	v1 "k8s.io/api/core/v1"
)

func (s *Server) routeStops() {
	s.mux.Handle("POST /crisp/v1/namespaces/{namespace}/pods/{name}/stop", s.ObjectHandler(podKind, s.stop))
	s.mux.Handle("POST /crisp/v1/namespaces/{namespace}/pods/{name}/start", s.ObjectHandler(podKind, s.start))
	s.handle("POST /crisp/v1/drain", func(w http.ResponseWriter, _ *http.Request) error { return done(w, s.o.Workers.Drain()) })
	s.handle("POST /crisp/v1/uncordon", func(w http.ResponseWriter, _ *http.Request) error { return done(w, s.o.Workers.Uncordon()) })
}

func done(w http.ResponseWriter, err error) error {
	if err != nil {
		return err
	}
	return Write(w, http.StatusAccepted, struct{}{})
}

// stoppable returns the pod of a stop or start request, which must not be over.
func (s *Server) stoppable(r *http.Request, over func(*v1.Pod) bool) (*v1.Pod, error) {
	o, err := s.Find(r, podKind)
	if err != nil {
		return nil, err
	}
	pod := o.(*v1.Pod)
	switch owner := pod.Annotations[manifest.AnnotationWorkload]; {
	case owner != "":
		return nil, Forbidden(manifest.Key(pod) + " is one of " + owner + ": scale or delete that, or restart its containers (crisp restart)")
	case pod.DeletionTimestamp != nil:
		return nil, fault.WrongState.Errorf("pod %s/%s is being deleted", pod.Namespace, pod.Name)
	case over(pod):
		return nil, fault.WrongState.Errorf("pod %s/%s has ended: its phase is %s", pod.Namespace, pod.Name, pod.Status.Phase)
	}
	return pod, nil
}

func (s *Server) stop(w http.ResponseWriter, r *http.Request) error {
	pod, err := s.stoppable(r, func(pod *v1.Pod) bool { return podsync.Terminal(&pod.Status) })
	if err != nil {
		return err
	}
	grace, err := graceOf(r)
	if err != nil {
		return err
	}
	return done(w, s.o.Workers.Stop(pod, grace))
}

func (s *Server) start(w http.ResponseWriter, r *http.Request) error {
	pod, err := s.stoppable(r, func(pod *v1.Pod) bool { return podsync.Terminal(&pod.Status) && !podsync.Evicted(pod, &pod.Status) })
	if err != nil {
		return err
	}
	was, err := s.o.Workers.Start(pod)
	if err == nil && !was && pod.Status.Reason == podsync.StoppedReason {
		err = fault.WrongState.Errorf("pod %s/%s is stopped with all others: uncordon the node", pod.Namespace, pod.Name)
	}
	return done(w, err)
}

// graceOf parses the parameter gracePeriodSeconds; nil without it.
func graceOf(r *http.Request) (*int64, error) {
	text := r.URL.Query().Get("gracePeriodSeconds")
	if text == "" {
		return nil, nil
	}
	seconds, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return nil, fault.Invalid.Errorf("gracePeriodSeconds %q: want a number of seconds", text)
	}
	grace := int64(seconds)
	return &grace, nil
}
