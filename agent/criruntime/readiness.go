package criruntime

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/internal/periodic"
	internalapi "k8s.io/cri-api/pkg/apis"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// statusPeriod is the interval of the status calls, and their timeout.
const statusPeriod = 5 * time.Second

// A State is the last known state of the runtime.
type State struct {
	Answers      bool // it answered the last call
	RuntimeReady bool // its condition of this name
	NetworkReady bool // its condition of this name
	Lists        bool // it lists pods (Lister)
	// Reason and Message say why one of the four is false.
	Reason, Message string

	Version  string                // NAME://VERSION, as the node shows it; "" until it is known
	Handlers []*cri.RuntimeHandler // nil if it does not report them
	Features *cri.RuntimeFeatures  // nil if it does not report them
}

// Ready reports whether pods may be started. Those with the host's network do not need
// NetworkReady.
func (s State) Ready(hostNetwork bool) bool {
	return s.Answers && s.RuntimeReady && s.Lists && (s.NetworkReady || hostNetwork)
}

// HandlerNames returns the sorted names of the handlers; the default one's is "".
func (s State) HandlerNames() []string {
	var names []string
	for _, h := range s.Handlers {
		names = append(names, h.Name)
	}
	slices.Sort(names)
	return names
}

// Handler returns the handler of this name, or nil.
func (s State) Handler(name string) *cri.RuntimeHandler {
	for _, h := range s.Handlers {
		if h.Name == name {
			return h
		}
	}
	return nil
}

func (s State) same(o State) bool {
	return s.Version == o.Version && s.Answers == o.Answers && s.RuntimeReady == o.RuntimeReady && s.NetworkReady == o.NetworkReady && s.Lists == o.Lists &&
		s.Reason == o.Reason && s.Message == o.Message && slices.Equal(s.HandlerNames(), o.HandlerNames())
}

// A Lister lists the runtime's pods (PLEG).
type Lister interface {
	Health() error // why it has not listed pods for a long time, or nil
}

// A Watcher is notified of the first state and of each change. It must not block.
type Watcher interface{ RuntimeChanged(State) }

// A Monitor monitors whether the runtime is ready to run pods: it asks for the runtime's status
// every five seconds and notifies a watcher of changes.
type Monitor struct {
	runtime internalapi.RuntimeService
	watcher Watcher
	log     *slog.Logger

	mu   sync.Mutex
	last State // guarded by mu
}

// NewMonitor returns a Monitor of a runtime. It makes no call before Run.
func NewMonitor(runtime internalapi.RuntimeService, watcher Watcher, log *slog.Logger) *Monitor {
	return &Monitor{runtime: runtime, watcher: watcher, log: log}
}

// Get returns the last state. Before the first answer it is the zero State.
func (m *Monitor) Get() State {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last
}

// HandlerFeatures returns the features of a handler that the runtime last reported, nil if they
// are not known.
func (m *Monitor) HandlerFeatures(handler string) *cri.RuntimeHandlerFeatures {
	return m.Get().Handler(handler).GetFeatures()
}

// Run asks for the runtime's status and for the health of lists every period, until ctx ends.
func (m *Monitor) Run(ctx context.Context, lists Lister) {
	m.ask(ctx, lists, true)
	periodic.Run(ctx, statusPeriod, func(ctx context.Context) { m.ask(ctx, lists, false) })
}

func (m *Monitor) ask(ctx context.Context, lists Lister, first bool) {
	limited, cancel := context.WithTimeout(ctx, statusPeriod)
	defer cancel()
	resp, err := m.runtime.Status(limited, false)
	if ctx.Err() != nil {
		return
	}
	now := stateOf(resp, err)
	err = lists.Health()
	if now.Lists = err == nil; !now.Lists && now.Reason == "" {
		now.Reason, now.Message = "RuntimeDoesNotList", err.Error()
	}
	was := m.Get()
	now.Version = was.Version
	if now.Answers { // it may have been upgraded meanwhile
		if v, err := m.runtime.Version(limited, ""); err == nil {
			now.Version = v.RuntimeName + "://" + v.RuntimeVersion
		}
	}
	m.mu.Lock()
	m.last = now
	m.mu.Unlock()
	if !first && now.same(was) {
		return
	}
	m.log.InfoContext(ctx, "runtime status", "answers", now.Answers, "runtime_ready", now.RuntimeReady, "network_ready", now.NetworkReady,
		"reason", now.Reason, "message", now.Message, "handlers", strings.Join(now.HandlerNames(), ","), "version", now.Version)
	m.watcher.RuntimeChanged(now)
}

func stateOf(resp *cri.StatusResponse, err error) State {
	if err != nil {
		return State{Reason: "RuntimeDoesNotAnswer", Message: err.Error()}
	}
	s := State{Answers: true, Handlers: resp.GetRuntimeHandlers(), Features: resp.GetFeatures()}
	for _, c := range resp.GetStatus().GetConditions() {
		switch c.Type {
		case cri.RuntimeReady:
			s.RuntimeReady = c.Status
		case cri.NetworkReady:
			s.NetworkReady = c.Status
		}
		if !c.Status && s.Reason == "" {
			s.Reason, s.Message = c.Reason, c.Message
		}
	}
	return s
}
