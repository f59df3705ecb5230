package api

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/crisp-cri/crisp/agent/desired"
	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/store"
)

// What another client changes while the body of a resize is on its way stays.
func TestResizeKeepsChangesMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objects, err := store.Open(t.TempDir(), "n1", none{}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		wanted := desired.New([]string{manifest.SourceAPI})
		put := func(labels string) {
			text := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web","labels":{` + labels + `}},"spec":{"containers":[{"name":"a","image":"i"}]}}`
			if _, _, _, err := objects.Put([]byte(text), store.PutOptions{}); err != nil {
				t.Fatal(err)
			}
			wanted.Update(objects.Update())
		}
		put(`"first":"1"`)
		s := serverOf(wanted)
		s.o.Store = objects
		body := slow{func() { put(`"first":"1","second":"2"`) }, strings.NewReader(`{"spec":{"containers":[{"name":"a","resources":{"limits":{"cpu":"1"}}}]}}`)}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(http.MethodPut, "/api/v1/namespaces/default/pods/web/resize", &body))
		given, err := objects.Given("pod default/web")
		if err != nil || w.Code != http.StatusOK {
			t.Fatalf("%d: %s, %v", w.Code, w.Body, err)
		}
		for _, want := range []string{`"second":"2"`, `"cpu":"1"`} {
			if !strings.Contains(string(given), want) {
				t.Errorf("%s is lost: %s", want, given)
			}
		}
	})
}

// A slow body does something before it is read.
type slow struct {
	first func()
	rest  io.Reader
}

func (s *slow) Read(p []byte) (int, error) {
	if s.first != nil {
		s.first()
		s.first = nil
	}
	return s.rest.Read(p)
}
