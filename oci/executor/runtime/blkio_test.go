package runtime

import (
	"log/slog"
	"sync"
	"testing"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/fs"
)

// The first containers of an executor may start at the same time: the cgroups library sets the
// limits of each. The race detector reports what it finds out without a lock.
func TestFirstLimitsAtOnce(t *testing.T) {
	if _, err := newBuiltins(t.TempDir(), t.TempDir(), slog.New(slog.DiscardHandler), nil, nil); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			r := &cgroups.Resources{SkipDevices: true}
			m, err := fs.NewManager(&cgroups.Cgroup{Resources: r}, map[string]string{})
			if err == nil {
				err = m.Set(r)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}
