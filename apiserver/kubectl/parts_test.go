package kubectl

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// kubectl debug and patch --subresource resize send a patch of the whole pod. The agent uses only
// the part of the subresource, and the rest of the pod stays as it is.
func TestPatchOfParts(t *testing.T) {
	var debugged added
	a := newAPI(t, &debugged)
	a.put(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web"},"spec":{"containers":[{"name":"a","image":"i","resources":{"requests":{"cpu":"1"}}},{"name":"b","image":"i"}]}}`)
	patch := func(part, text string) *httptest.ResponseRecorder {
		return a.ask(http.MethodPatch, "/api/v1/namespaces/default/pods/web/"+part, strategicPatch, text, func() {})
	}
	if w := patch("ephemeralcontainers", `{"spec":{"ephemeralContainers":[{"name":"look","image":"d"}]}}`); w.Code != http.StatusOK || len(debugged) != 1 || debugged[0].Name != "look" {
		t.Errorf("%v are added: %d: %s", debugged, w.Code, w.Body)
	}
	// Only resources are used.
	w := patch("resize?dryRun=All", `{"spec":{"containers":[{"name":"b","image":"other","resources":{"limits":{"cpu":"1"}}}]}}`)
	if body := w.Body.String(); w.Code != http.StatusOK || !strings.Contains(body, `"name":"b","image":"i","resources":{"limits":{"cpu":"1"}`) {
		t.Errorf("resized: %d: %s", w.Code, body)
	}
	w = patch("resize", `{"spec":{"containers":[{"name":"a","resources":{"requests":null}}]}}`)
	if body := w.Body.String(); w.Code != http.StatusUnprocessableEntity || !strings.Contains(body, "its QoS class") {
		t.Errorf("resized to another QoS class: %d: %s", w.Code, body)
	}
	if w := patch("resize", `{"spec":{"containers":7}}`); w.Code != http.StatusUnprocessableEntity {
		t.Errorf("a patch that makes no pod: %d: %s", w.Code, w.Body)
	}
}

// none is an agent without earlier pods.
type none struct{}

func (none) Pod(types.UID) *v1.Pod { return nil }

func (none) Last(podsync.Key) *v1.Pod { return nil }

// added has ephemeral containers.
type added []v1.EphemeralContainer

func (a *added) Set(_ *v1.Pod, list []v1.EphemeralContainer) error {
	*a = list
	return nil
}
