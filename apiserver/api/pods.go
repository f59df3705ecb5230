package api

import (
	"cmp"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/apiserver/store"
	"github.com/crisp-cri/crisp/internal/fault"
	v1 "k8s.io/api/core/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var podKind = Kinds[0]

// routePods routes the subresources of pods, at Kubernetes' paths and at the kubelet's, which have
// the container's name in another place.
func (s *Server) routePods() {
	handle := func(pattern string, f Handler) { s.mux.Handle(pattern, s.ObjectHandler(podKind, f)) }
	const pod = "/api/v1/namespaces/{namespace}/pods/{name}"
	for _, part := range []string{"status", "resize", "ephemeralcontainers"} {
		handle("GET "+pod+"/"+part, func(w http.ResponseWriter, r *http.Request) error { return s.getOne(w, r, podKind) })
	}
	handle("GET "+pod+"/log", s.log)
	handle("GET /containerLogs/{namespace}/{name}/{container}", s.log)
	for _, verb := range []string{"GET", "POST"} {
		handle(verb+" "+pod+"/exec", s.exec)
		handle(verb+" "+pod+"/attach", s.attach)
		handle(verb+" "+pod+"/portforward", s.portForward)
		for _, uid := range []string{"", "/{uid}"} {
			handle(verb+" /exec/{namespace}/{name}"+uid+"/{container}", s.exec)
			handle(verb+" /attach/{namespace}/{name}"+uid+"/{container}", s.attach)
			handle(verb+" /portForward/{namespace}/{name}"+uid, s.portForward)
		}
	}
	handle("POST /run/{namespace}/{name}/{container}", s.run)
	handle("POST /run/{namespace}/{name}/{uid}/{container}", s.run)
	handle("PUT "+pod+"/resize", s.resize)
	handle("PUT "+pod+"/ephemeralcontainers", s.ephemeral)
	handle("POST /crisp/v1/namespaces/{namespace}/pods/{name}/restart", s.restart)
	handle("GET /crisp/v1/namespaces/{namespace}/pods/{name}/startup", s.startup)
	s.handle("GET /crisp/v1/startup", s.startups)
	handle("POST /checkpoint/{namespace}/{name}/{container}", s.checkpoint)
}

// target returns the pod and the container of a request; the first container if it names none.
func (s *Server) target(r *http.Request) (*v1.Pod, v1.ContainerStatus, error) {
	o, err := s.Find(r, podKind)
	if err != nil {
		return nil, v1.ContainerStatus{}, err
	}
	pod := o.(*v1.Pod)
	if uid := r.PathValue("uid"); uid != "" && uid != string(pod.UID) {
		return nil, v1.ContainerStatus{}, fault.NotFound.Errorf("pod %s/%s has the UID %s by now", pod.Namespace, pod.Name, pod.UID)
	}
	name := cmp.Or(r.PathValue("container"), r.URL.Query().Get("container"), pod.Spec.Containers[0].Name)
	c := podsync.StatusOf(name, pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses, pod.Status.EphemeralContainerStatuses)
	if c == nil && podsync.ContainerOf(&pod.Spec, name) == nil {
		var names []string
		for other := range podsync.Containers(&pod.Spec) {
			names = append(names, other.Name)
		}
		return pod, v1.ContainerStatus{}, fault.NotFound.Errorf("pod %s/%s has no container %s, but %s", pod.Namespace, pod.Name, name, strings.Join(names, ", "))
	}
	if c == nil {
		return pod, v1.ContainerStatus{}, fault.NotFound.Errorf("pod %s/%s has no container %s yet", pod.Namespace, pod.Name, name)
	}
	return pod, *c, nil
}

// running returns the runtime and its ID of a request's container, which must be running.
func (s *Server) running(r *http.Request) (internalapi.RuntimeService, string, error) {
	pod, c, err := s.target(r)
	if err != nil {
		return nil, "", err
	}
	if c.State.Running == nil {
		return nil, "", fault.WrongState.Errorf("container %s of pod %s/%s does not run", c.Name, pod.Namespace, pod.Name)
	}
	runtime, _, err := s.Runtime()
	return runtime, podsync.RuntimeID(c.ContainerID), err
}

func (s *Server) exec(w http.ResponseWriter, r *http.Request) error {
	runtime, id, err := s.running(r)
	if err != nil {
		return err
	}
	a := streams(r, id)
	resp, err := runtime.Exec(r.Context(), &cri.ExecRequest{
		ContainerId: id, Cmd: r.URL.Query()["command"], Tty: a.Tty, Stdin: a.Stdin, Stdout: a.Stdout, Stderr: a.Stderr,
	})
	return s.pass(w, r, resp.GetUrl(), err)
}

func (s *Server) attach(w http.ResponseWriter, r *http.Request) error {
	runtime, id, err := s.running(r)
	if err != nil {
		return err
	}
	resp, err := runtime.Attach(r.Context(), streams(r, id))
	return s.pass(w, r, resp.GetUrl(), err)
}

// streams returns the streams that a request asks for, by Kubernetes' or the kubelet's names. A
// terminal has no standard error.
func streams(r *http.Request, id string) *cri.AttachRequest {
	q := r.URL.Query()
	of := func(name, kubelet string) bool {
		if q.Has(kubelet) {
			name = kubelet
		}
		return BoolParam(q, name)
	}
	a := &cri.AttachRequest{ContainerId: id, Tty: BoolParam(q, "tty"), Stdin: of("stdin", "input"), Stdout: of("stdout", "output")}
	a.Stderr = !a.Tty && of("stderr", "error")
	return a
}

func (s *Server) portForward(w http.ResponseWriter, r *http.Request) error {
	o, err := s.Find(r, podKind)
	if err != nil {
		return err
	}
	runtime, _, err := s.Runtime()
	if err != nil {
		return err
	}
	id, err := sandbox(r, runtime, o.(*v1.Pod))
	if err != nil {
		return err
	}
	var ports []int32
	for _, text := range r.URL.Query()["ports"] {
		port, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			return fault.Invalid.Errorf("ports: %v", err)
		}
		ports = append(ports, int32(port))
	}
	resp, err := runtime.PortForward(r.Context(), &cri.PortForwardRequest{PodSandboxId: id, Port: ports})
	return s.pass(w, r, resp.GetUrl(), err)
}

// sandbox returns the ID of the pod's sandbox, which must be ready.
func sandbox(r *http.Request, runtime internalapi.RuntimeService, pod *v1.Pod) (string, error) {
	list, err := runtime.ListPodSandbox(r.Context(), &cri.PodSandboxFilter{
		LabelSelector: map[string]string{"io.kubernetes.pod.uid": string(pod.UID)}, State: &cri.PodSandboxStateValue{State: cri.PodSandboxState_SANDBOX_READY},
	})
	if err != nil {
		return "", err
	}
	if len(list) == 0 {
		return "", fault.WrongState.Errorf("pod %s/%s does not run", pod.Namespace, pod.Name)
	}
	return list[0].Id, nil
}

// pass proxies a request to the runtime's streaming server at the URL to. err is the error of
// requesting that URL.
func (s *Server) pass(w http.ResponseWriter, r *http.Request, to string, err error) error {
	if err != nil {
		return err
	}
	u, err := url.Parse(to)
	if err != nil {
		return err
	}
	p := &httputil.ReverseProxy{
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.Out.URL, pr.Out.Host = u, u.Host
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			s.fail(w, r, fault.Unavailable.Errorf("streaming server of the runtime: %v", err))
		},
		ErrorLog: slog.NewLogLogger(s.o.Log.Handler(), slog.LevelDebug),
	}
	p.ServeHTTP(w, r)
	return nil
}

// run runs a command to completion and answers with its output.
func (s *Server) run(w http.ResponseWriter, r *http.Request) error {
	runtime, id, err := s.running(r)
	if err != nil {
		return err
	}
	cmd := strings.Fields(r.FormValue("cmd"))
	if len(cmd) == 0 {
		return fault.Invalid.Errorf("cmd: is missing")
	}
	stdout, stderr, err := runtime.ExecSync(r.Context(), id, cmd, 0)
	if err != nil && len(stdout)+len(stderr) == 0 {
		return err
	}
	w.Write(stdout)
	w.Write(stderr)
	return nil
}

// checkpoint writes a checkpoint archive of a container, as the kubelet's endpoint of this name
// does.
func (s *Server) checkpoint(w http.ResponseWriter, r *http.Request) error {
	pod, c, err := s.target(r)
	if err != nil {
		return err
	}
	runtime, id, err := s.running(r)
	if err != nil {
		return err
	}
	dir := s.o.Checkpoints
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	path := fmt.Sprintf("%s/checkpoint-%s_%s-%s-%s.tar", dir, pod.Name, pod.Namespace, c.Name, time.Now().UTC().Format("2006-01-02T15-04-05Z"))
	if err := runtime.CheckpointContainer(r.Context(), &cri.CheckpointContainerRequest{ContainerId: id, Location: path}); err != nil {
		return err
	}
	return Write(w, http.StatusOK, map[string][]string{"items": {path}})
}

// resize changes the resources of a pod's running containers. The request has the whole pod, of
// which only resources are used.
func (s *Server) resize(w http.ResponseWriter, r *http.Request) error {
	var asked, pod v1.Pod
	if err := Decode(r, &asked); err != nil {
		return err
	}
	given, _, err := s.Given(r, podKind) // after reading the body, which may take long to arrive
	if err != nil {
		return err
	}
	if err := json.Unmarshal(given, &pod); err != nil {
		return err
	}
	for _, lists := range [][2][]v1.Container{{pod.Spec.Containers, asked.Spec.Containers}, {pod.Spec.InitContainers, asked.Spec.InitContainers}} {
		for i := range lists[0] {
			for _, c := range lists[1] {
				if c.Name == lists[0][i].Name {
					lists[0][i].Resources = c.Resources
				}
			}
		}
	}
	text, err := json.Marshal(&pod)
	if err != nil {
		return err
	}
	return s.Put(w, r, podKind, text, store.PutOptions{Update: true, InPlace: true})
}

// ephemeral adds ephemeral containers to a pod of any source.
func (s *Server) ephemeral(w http.ResponseWriter, r *http.Request) error {
	o, err := s.Find(r, podKind)
	if err != nil {
		return err
	}
	pod := o.(*v1.Pod).DeepCopy()
	var asked v1.Pod
	if err := Decode(r, &asked); err != nil {
		return err
	}
	if err := s.o.Ephemeral.Set(pod, asked.Spec.EphemeralContainers); err != nil {
		return err
	}
	s.settle(r.Context(), func() bool {
		o, err := s.Find(r, podKind)
		return err != nil || len(o.(*v1.Pod).Spec.EphemeralContainers) >= len(asked.Spec.EphemeralContainers)
	})
	return s.getOne(w, r, podKind)
}
