package layer

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

// Closing the store does not wait for pending removals: there may be many, and a daemon that stops
// has little time. The next start finishes them.
func TestCloseLeavesWhatIsToBeRemoved(t *testing.T) {
	var trees []string
	for _, name := range []string{"a", "b", "c"} {
		tree := filepath.Join(t.TempDir(), name)
		if err := os.MkdirAll(filepath.Join(tree, "x/y"), 0o755); err != nil {
			t.Fatal(err)
		}
		trees = append(trees, tree)
	}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	ctx, end := context.WithCancel(t.Context())
	rs := newRemovals(ctx, log)
	rs.turn <- struct{}{} // as if another tree were being removed
	for _, tree := range trees {
		rs.later(tree, Usage{})
	}
	end()
	<-rs.turn
	rs.background.Wait()
	for _, tree := range trees {
		if _, err := os.Lstat(tree); err != nil {
			t.Errorf("after the close: %v", err)
		}
	}

	rs = newRemovals(t.Context(), log) // as the next Open does
	for _, tree := range trees {
		rs.later(tree, Usage{})
	}
	rs.background.Wait()
	for _, tree := range trees {
		if _, err := os.Lstat(tree); !os.IsNotExist(err) {
			t.Errorf("%s was not removed (err %v)", tree, err)
		}
	}
}
