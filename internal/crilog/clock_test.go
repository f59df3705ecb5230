package crilog

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A clock that is set back slightly does not make times in a log decrease. After a large
// correction, such as that of a wrong clock at boot, lines do not keep the same time until the
// clock has caught up.
func TestClockSetBack(t *testing.T) {
	for _, c := range []struct {
		ahead   time.Duration
		follows bool
	}{{time.Second, false}, {2 * time.Hour, true}} {
		path := filepath.Join(t.TempDir(), "0.log")
		w, err := Open(path, 0, Limit{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		wrong := time.Now().Add(c.ahead).UTC().Round(0)
		w.last = wrong
		w.Write(Stdout, []byte("line\n"), nil)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		stamp, _, _ := strings.Cut(string(data), " ")
		at, err := time.Parse(time.RFC3339Nano, stamp)
		if err != nil {
			t.Fatal(err)
		}
		if at.Before(wrong) != c.follows {
			t.Errorf("the clock was set back by %v: the line has the time %v, the one before it %v", c.ahead, at, wrong)
		}
	}
}
