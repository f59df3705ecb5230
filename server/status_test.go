package server

import (
	"testing"
	"testing/synctest"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/oci/ocitest"
	"github.com/crisp-cri/crisp/oci/wire"
)

// A node whose executor does not answer is not ready, with the reason, for as long as
// that lasts: a scheduler must send no pods there.
func TestNotReadyWithoutAnExecutor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := ocitest.NewMachine(t)
		r := m.Open(t)
		s := &Server{runtime: r, network: &fakeNetwork{}}
		s.Reconfigure(Options{Network: s.network})
		ready := func() *cri.RuntimeCondition {
			t.Helper()
			resp, err := s.Status(t.Context(), &cri.StatusRequest{})
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range resp.Status.Conditions {
				if c.Type == cri.RuntimeReady {
					return c
				}
			}
			t.Fatal("there is no condition RuntimeReady")
			return nil
		}
		if c := ready(); !c.Status || c.Reason != "" || c.Message != "" {
			t.Errorf("with an executor that answers: %v", c)
		}
		release := m.Executor.Block(wire.MethodPing)
		time.Sleep(40 * time.Second)
		synctest.Wait()
		if c := ready(); c.Status || c.Reason != "ExecutorNotReady" || c.Message == "" {
			t.Errorf("with one that does not answer: %v", c)
		}
		release()
		time.Sleep(time.Minute)
		synctest.Wait()
		if c := ready(); !c.Status || c.Message != "" {
			t.Errorf("when it answers again: %v", c)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}
