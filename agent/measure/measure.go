// Package measure counts what is asked of a runtime, by the names of the
// kubelet's metrics: runtime_operations_total and its kin. Each is a line of the
// log too, for who debugs.
package measure

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	internalapi "k8s.io/cri-api/pkg/apis"
)

// Counts are the operations so far.
type Counts struct {
	log *slog.Logger

	mu  sync.Mutex
	ops map[string]*operation // guarded by mu
}

type operation struct {
	total, errors uint64
	took          time.Duration
}

// New returns Counts of nothing. The log's lines, of level debug, have what the
// callers' contexts carry: the pod that it is about.
func New(log *slog.Logger) *Counts { return &Counts{log: log, ops: map[string]*operation{}} }

// Wrap returns services that count what is asked of the two.
func (c *Counts) Wrap(r internalapi.RuntimeService, i internalapi.ImageManagerService) (internalapi.RuntimeService, internalapi.ImageManagerService) {
	return &runtime{r, c, r}, &images{i, c, i}
}

// begin starts an operation; what it returns ends it, with the error that err
// points at by then.
func (c *Counts) begin(ctx context.Context, name string, err *error) func() {
	start := time.Now()
	return func() {
		took := time.Since(start)
		c.log.DebugContext(ctx, "runtime asked", "operation", name, "took", took, "err", *err)
		c.mu.Lock()
		defer c.mu.Unlock()
		op := c.ops[name]
		if op == nil {
			op = &operation{}
			c.ops[name] = op
		}
		op.total++
		op.took += took
		if *err != nil {
			op.errors++
		}
	}
}

// Write adds the counts as metrics.
func (c *Counts) Write(add func(name, kind, help string, labels map[string]string, value float64)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(c.ops)) {
		op, labels := c.ops[name], map[string]string{"operation_type": name}
		add("kubelet_runtime_operations_total", "counter", "Operations of the runtime.", labels, float64(op.total))
		add("kubelet_runtime_operations_errors_total", "counter", "Operations of the runtime that failed.", labels, float64(op.errors))
		add("kubelet_runtime_operations_seconds_total", "counter", "Time that operations of the runtime took.", labels, op.took.Seconds())
	}
}
