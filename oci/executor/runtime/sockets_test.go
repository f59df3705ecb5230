package runtime

import (
	"log/slog"
	"strings"
	"testing"
)

// The sockets of shims are below the state directory, unless their paths would be longer than those of
// sockets can be.
func TestSocketsOfShims(t *testing.T) {
	fits := "/" + strings.Repeat("x", 107-len("//s/")-64)
	for state, want := range map[string]string{"/run/crisp": "/run/crisp/s", fits: fits + "/s", fits + "x": ""} {
		if got := newTasks(state+"/executor", state, nil, slog.New(slog.DiscardHandler), nil).sockets; got != want {
			t.Errorf("of %s: %q, want %q", state, got, want)
		}
	}
}
