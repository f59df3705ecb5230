package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/crisp-cri/crisp/agent/source"
	"github.com/crisp-cri/crisp/apiserver/workload"
	"github.com/crisp-cri/crisp/internal/fault"
	grpccodes "google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A client learns from the code what to do: a runtime that is late may answer the next request.
func TestErrorCodes(t *testing.T) {
	s := serverOf(source.NewManager(nil, workload.Expand))
	for _, test := range []struct {
		err    error
		code   int
		reason metav1.StatusReason
	}{
		{fault.NotFound.Errorf("no"), 404, metav1.StatusReasonNotFound},
		{status.Error(grpccodes.Unavailable, "away"), 503, metav1.StatusReasonServiceUnavailable},
		{status.Error(grpccodes.DeadlineExceeded, "late"), 504, metav1.StatusReasonTimeout},
		{fmt.Errorf("exec: %w", context.DeadlineExceeded), 504, metav1.StatusReasonTimeout},
		{fmt.Errorf("%w: %w", fault.Unavailable.Errorf("away"), context.DeadlineExceeded), 503, metav1.StatusReasonServiceUnavailable},
		{status.Error(grpccodes.Internal, "broken"), 500, metav1.StatusReasonInternalError},
	} {
		w := httptest.NewRecorder()
		s.fail(w, httptest.NewRequest(http.MethodGet, "/", nil), test.err)
		var got metav1.Status
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != test.code || int(got.Code) != test.code || got.Reason != test.reason {
			t.Errorf("%v: %d %+v, want %d %s", test.err, w.Code, got, test.code, test.reason)
		}
	}
}
