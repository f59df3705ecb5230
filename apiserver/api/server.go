// Package api serves the agent over HTTP: the objects of this node at the paths of Kubernetes' API,
// for "crisp" and kubectl, and the endpoints of a kubelet, for monitoring tools.
//
// It has no state of its own. Objects come from the source.Manager (all sources), and changes go
// to the store (objects of the local API); other packages provide statuses, events and the node. It
// queries the runtime over CRI, and proxies streams (exec, attach, port-forward) to the runtime's
// streaming server.
//
// Resource versions are those of a watchcache.Cache, which serves all reads. Requests that only
// kubectl makes are in apiserver/kubectl, which wraps this package.
package api

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/node"
	"github.com/crisp-cri/crisp/agent/source"
	"github.com/crisp-cri/crisp/agent/status"
	"github.com/crisp-cri/crisp/agent/volume"
	"github.com/crisp-cri/crisp/agent/worker"
	"github.com/crisp-cri/crisp/apiserver/startup"
	"github.com/crisp-cri/crisp/apiserver/store"
	"github.com/crisp-cri/crisp/apiserver/watchcache"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	internalapi "k8s.io/cri-api/pkg/apis"
)

// Options configure a Server.
type Options struct {
	Wanted *source.Manager
	Store  *store.Store
	Events *status.EventStore
	Node   *node.State
	// The runtime, and the counters of its calls and of probes.
	Runtime               Runtime
	Metrics, ProbeMetrics prometheus.Gatherer
	Statuses              Statuses
	Files                 Files
	Volumes               *volume.Maker
	Workers               *worker.Workers
	Ephemeral             Ephemeral
	Startup               *startup.Keeper // the timelines of pods' starts
	Loop, Lists           Health          // the agent's loop, and the lists of what the runtime runs
	Config                Config
	Checkpoints           string // directory of checkpoint archives
	Log                   *slog.Logger
}

// A Runtime returns the runtime's services, or an error before it has answered.
type Runtime interface {
	Connected() bool
	Runtime() internalapi.RuntimeService
	Images() internalapi.ImageManagerService
}

// Statuses returns the statuses of pods.
type Statuses interface {
	Get(types.UID) *v1.PodStatus // nil if there was none since the agent's start
	// Last is like Get, but the status may also be from before.
	Last(*v1.Pod) *v1.PodStatus
}

// Files returns the pods that have files on disk.
type Files interface {
	Accepted() []*v1.Pod // the pods with files, including those being ended
	LogDir(*v1.Pod) string
	EndingSince(types.UID) time.Time // when a pod's end was recorded; zero if it was not
}

// Ephemeral stores the ephemeral containers of pods.
type Ephemeral interface {
	Set(pod *v1.Pod, containers []v1.EphemeralContainer) error // replaces those of the pod
}

// Health returns an error if something is unhealthy.
type Health interface{ Health() error }

// Config returns the agent's configuration.
type Config interface {
	Show() map[string]any // with the kubelet's names
}

// A Server answers requests.
type Server struct {
	o       Options
	mux     *http.ServeMux
	sources *sources
	cache   *watchcache.Cache
	disk    diskUse
}

// New returns a Server.
func New(o Options) *Server {
	s := &Server{o: o, mux: http.NewServeMux()}
	s.sources = &sources{o: &s.o}
	s.cache = watchcache.New(s.sources)
	s.routeObjects()
	s.routePods()
	s.routeStops()
	s.routeKubelet()
	return s
}

// Runtime returns the runtime's services, or an error of kind fault.Unavailable before it has
// answered.
func (s *Server) Runtime() (internalapi.RuntimeService, internalapi.ImageManagerService, error) {
	if !s.o.Runtime.Connected() {
		return nil, nil, fault.Unavailable.Errorf("the runtime has not answered yet")
	}
	return s.o.Runtime.Runtime(), s.o.Runtime.Images(), nil
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// Poke wakes watchers after a possible change. It does not block.
func (s *Server) Poke() {
	if s != nil {
		s.cache.Poke()
	}
}

// A Handler serves a request, or returns why it cannot.
type Handler func(http.ResponseWriter, *http.Request) error

// Handler answers errors of f with Kubernetes' Status.
func (s *Server) Handler(f Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := f(w, r); err != nil {
			s.fail(w, r, err)
		}
	})
}

func (s *Server) handle(pattern string, f Handler) { s.mux.Handle(pattern, s.Handler(f)) }

// codes has the HTTP status and Kubernetes' reason of each kind of error.
var codes = []struct {
	kind   fault.Kind
	code   int
	reason metav1.StatusReason
}{
	{fault.NotFound, http.StatusNotFound, metav1.StatusReasonNotFound},
	{fault.Exists, http.StatusConflict, metav1.StatusReasonAlreadyExists},
	{fault.WrongState, http.StatusConflict, metav1.StatusReasonConflict},
	{fault.Invalid, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid},
	{fault.Unavailable, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable},
}

// A Forbidden error says why the API must not change an object.
type Forbidden string

func (f Forbidden) Error() string { return string(f) }

func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, context.Canceled) {
		return // the client has gone
	}
	status := metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
		Message: err.Error(), Reason: metav1.StatusReasonInternalError, Code: http.StatusInternalServerError,
	}
	err = criruntime.Fault(err)
	for _, c := range codes {
		if errors.Is(err, c.kind) {
			status.Reason, status.Code, status.Message = c.reason, int32(c.code), err.Error()
		}
	}
	if errors.Is(err, context.DeadlineExceeded) && status.Code == http.StatusInternalServerError {
		status.Reason, status.Code, status.Message = metav1.StatusReasonTimeout, http.StatusGatewayTimeout, err.Error()
	}
	if _, ok := errors.AsType[Forbidden](err); ok {
		status.Reason, status.Code = metav1.StatusReasonForbidden, http.StatusForbidden
	}
	if errors.Is(err, watchcache.ErrExpired) {
		status.Reason, status.Code = metav1.StatusReasonExpired, http.StatusGone
	}
	if status.Code == http.StatusInternalServerError {
		s.o.Log.WarnContext(r.Context(), "request failed", "path", r.URL.Path, "err", err)
	}
	Write(w, int(status.Code), status)
}

// Write answers with v as JSON. It returns an error, and has not answered, if v cannot be encoded.
func Write(w http.ResponseWriter, code int, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	w.Write(append(data, '\n')) // an error means that the client has gone
	return nil
}

// BoolParam parses a boolean parameter: "1", "true" and the bare name are true.
func BoolParam(q url.Values, name string) bool {
	if !q.Has(name) {
		return false
	}
	switch strings.ToLower(q.Get(name)) {
	case "0", "false", "no":
		return false
	}
	return true
}
