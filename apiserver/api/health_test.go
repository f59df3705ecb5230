package api

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
)

// A part is well unless it has an error.
type part struct{ err error }

func (p part) Health() error { return p.err }

// The checks tell a stuck loop from lists that are late, and liveness asks for the loop alone: a restart
// would not bring the runtime back.
func TestHealth(t *testing.T) {
	ill := part{errors.New("stuck")}
	for _, test := range []struct {
		loop, lists part
		want        map[string]int
	}{
		{part{}, part{}, map[string]int{"/healthz/syncloop": 200, "/healthz/pleg": 200, "/livez": 200}},
		{ill, part{}, map[string]int{"/healthz/syncloop": 500, "/healthz/pleg": 200, "/livez": 500}},
		{part{}, ill, map[string]int{"/healthz/syncloop": 200, "/healthz/pleg": 500, "/livez": 200}},
	} {
		s := New(Options{Loop: test.loop, Lists: test.lists})
		for path, want := range test.want {
			for _, h := range []http.Handler{s, s.Health()} {
				w := httptest.NewRecorder()
				if h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil)); w.Code != want {
					t.Errorf("%s with loop %v and lists %v: %d, want %d", path, test.loop.err, test.lists.err, w.Code, want)
				}
			}
		}
	}
}
