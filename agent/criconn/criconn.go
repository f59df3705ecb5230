// Package criconn connects to a runtime. It counts and times the calls, in metrics with the
// kubelet's names (kubelet_runtime_operations_total and the like), and logs each at level
// debug.
package criconn

import (
	"context"
	"log/slog"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	internalapi "k8s.io/cri-api/pkg/apis"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A Connection is the connection to a runtime. It may be used before the runtime has
// answered: until then a call blocks, and is fault.Unavailable when its context ends.
type Connection struct {
	Counts *prometheus.Registry // of the calls

	log *slog.Logger

	made    chan struct{} // closed by Connect
	runtime internalapi.RuntimeService
	images  internalapi.ImageManagerService
	name    string // CRI's runtime name

	total, failed, took *prometheus.CounterVec
}

// New returns a Connection that is not connected yet. The line in log for each call has the
// attributes of the call's context, such as the pod.
func New(log *slog.Logger) *Connection {
	counts, of := prometheus.NewRegistry(), []string{"operation_type"}
	return &Connection{
		Counts: counts, log: log, made: make(chan struct{}),
		total:  promauto.With(counts).NewCounterVec(prometheus.CounterOpts{Name: "kubelet_runtime_operations_total", Help: "Operations of the runtime."}, of),
		failed: promauto.With(counts).NewCounterVec(prometheus.CounterOpts{Name: "kubelet_runtime_operations_errors_total", Help: "Operations of the runtime that failed."}, of),
		took:   promauto.With(counts).NewCounterVec(prometheus.CounterOpts{Name: "kubelet_runtime_operations_seconds_total", Help: "Time that operations of the runtime took."}, of),
	}
}

// Connect asks a runtime for its version, and returns that. If the runtime answers, the
// Connection uses it from then on. Connect must not be called again after that.
func (c *Connection) Connect(ctx context.Context, r internalapi.RuntimeService, i internalapi.ImageManagerService) (version *cri.VersionResponse, err error) {
	defer c.begin(ctx, "version", &err)()
	if version, err = r.Version(ctx, ""); err != nil {
		return nil, err
	}
	c.runtime, c.images, c.name = r, i, version.RuntimeName
	close(c.made)
	return version, nil
}

// Runtime returns the runtime's RuntimeService, with calls counted.
func (c *Connection) Runtime() internalapi.RuntimeService { return &runtime{c} }

// Images returns the runtime's ImageManagerService, with calls counted.
func (c *Connection) Images() internalapi.ImageManagerService { return &images{c} }

// Connected reports whether the runtime has answered.
func (c *Connection) Connected() bool {
	select {
	case <-c.made:
		return true
	default:
		return false
	}
}

// RuntimeName returns the runtime's name in CRI's Version, "" before it has answered.
func (c *Connection) RuntimeName() string {
	if !c.Connected() {
		return ""
	}
	return c.name
}

// wait returns when the runtime has answered.
func (c *Connection) wait(ctx context.Context) error {
	if c.Connected() {
		return nil // whatever the context: the call ends with it
	}
	select {
	case <-c.made:
		return nil
	case <-ctx.Done():
		return fault.Unavailable.Errorf("the runtime has not answered yet: %w", ctx.Err())
	}
}

// call does a call, once the runtime has answered, and counts it.
func call[R any](ctx context.Context, c *Connection, name string, ask func() (R, error)) (r R, err error) {
	if err := c.wait(ctx); err != nil {
		return r, err
	}
	defer c.begin(ctx, name, &err)()
	return ask()
}

// do is call for a call without a result.
func (c *Connection) do(ctx context.Context, name string, ask func() error) error {
	_, err := call(ctx, c, name, func() (struct{}, error) { return struct{}{}, ask() })
	return err
}

// begin starts an operation. The function that it returns ends the operation, with the error
// that err then points at.
func (c *Connection) begin(ctx context.Context, name string, err *error) func() {
	start := time.Now()
	return func() {
		took := time.Since(start)
		c.log.DebugContext(ctx, "runtime asked", "operation", name, "took", took, "err", *err)
		c.total.WithLabelValues(name).Inc()
		c.took.WithLabelValues(name).Add(took.Seconds())
		if failed := c.failed.WithLabelValues(name); *err != nil {
			failed.Inc()
		}
	}
}
