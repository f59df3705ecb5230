package node

import (
	"math"
	"testing"
)

// An unlimited or missing cgroup puts no pod under pressure.
func TestObserve(t *testing.T) {
	for _, c := range []struct {
		used, limit uint64
		left, of    int64
		ok          bool
	}{
		{used: 1 << 20, limit: 10 << 20, left: 9 << 20, of: 10 << 20, ok: true},
		{used: 11 << 20, limit: 10 << 20, left: -1 << 20, of: 10 << 20, ok: true}, // the limit is below the current use
		{},                               // there is no such cgroup
		{used: 1, limit: math.MaxUint64}, // "max" of v2
		{used: 1, limit: 1<<63 - 4096},   // "unlimited" of v1
	} {
		if _, ok := (&ContainerManager{}).Memory(); ok {
			t.Error("there is an observation without cgroups")
		}
		if o, ok := observe(c.used, c.limit); ok != c.ok || o != (Observation{Available: c.left, Capacity: c.of}) {
			t.Errorf("%d of %d: %+v, %v", c.used, c.limit, o, ok)
		}
	}
}
