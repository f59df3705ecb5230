package image_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/test/imagetest"
)

// Whatever a registry answers, the error says what can be done about it, and no answer counts as a
// fault of crispd.
func TestAnswersHaveKinds(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	for status, want := range map[int]struct {
		kind   error
		reason string
	}{
		http.StatusNoContent:                  {fault.Unavailable, ""},
		http.StatusBadRequest:                 {fault.Invalid, ""},
		http.StatusForbidden:                  {fault.Invalid, ""},
		http.StatusNotFound:                   {fault.NotFound, ""},
		http.StatusMethodNotAllowed:           {fault.Invalid, ""},
		http.StatusRequestTimeout:             {nil, registry.RegistryUnavailable},
		http.StatusGone:                       {fault.NotFound, ""},
		http.StatusUnavailableForLegalReasons: {fault.Invalid, ""},
		http.StatusServiceUnavailable:         {nil, registry.RegistryUnavailable},
	} {
		reg.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if strings.Contains(r.URL.Path, "/manifests/") {
				w.WriteHeader(status)
				return true
			}
			return false
		})
		_, err := p.Store.Pull(t.Context(), reg.Host+"/app:v1", registry.Caller{})
		if got := fault.KindOf(err); want.kind != nil && got != want.kind || want.reason != "" && !strings.HasPrefix(err.Error(), want.reason) {
			t.Errorf("%d: error is %v of kind %v, want %v %s", status, err, got, want.kind, want.reason)
		}
	}
}
