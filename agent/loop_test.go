package agent

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	internalapi "k8s.io/cri-api/pkg/apis"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	critest "k8s.io/cri-api/pkg/apis/testing"
)

// A stuck loop is reported; a loop that waits for events is not.
func TestLoopHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &heartbeat{}
		if h.Health() == nil {
			t.Error("well before it has begun")
		}
		h.beat()
		time.Sleep(stalled)
		if err := h.Health(); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		if h.Health() == nil {
			t.Error("well after two minutes of nothing")
		}
	})
}

// A bar blocks the loop when it publishes a pod, until it is lifted.
type bar struct {
	slog.Handler
	once            *sync.Once
	reached, lifted chan struct{}
}

func (b bar) Enabled(context.Context, slog.Level) bool { return true }

func (b bar) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "pod changed" {
		b.once.Do(func() {
			close(b.reached)
			<-b.lifted
		})
	}
	return nil
}

// A stuck loop is reported until it continues.
func TestStalledLoopIsReported(t *testing.T) {
	defer func(d time.Duration) { stalled = d }(stalled)
	stalled = 2 * time.Second
	dir := t.TempDir()
	manifests := filepath.Join(dir, "manifests")
	if err := os.Mkdir(manifests, 0o755); err != nil {
		t.Fatal(err)
	}
	runtime, images := critest.NewFakeRuntimeService(), critest.NewFakeImageService()
	runtime.FakeStatus = &cri.RuntimeStatus{Conditions: []*cri.RuntimeCondition{{Type: cri.RuntimeReady, Status: true}, {Type: cri.NetworkReady, Status: true}}}
	b := bar{slog.DiscardHandler, &sync.Once{}, make(chan struct{}), make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	a, err := Open(ctx, Options{
		Manifests: manifests, Root: dir, NodeIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Node: NodeConfig{NoPodCgroups: true}, Log: slog.New(b),
		Connect: func(context.Context) (internalapi.RuntimeService, internalapi.ImageManagerService, error) {
			return runtime, images, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	ended := make(chan error)
	go func() { ended <- a.Run(ctx, Embedding{}) }()
	until := func(well bool) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); (a.Health() == nil) != well; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("the health check says %v", a.Health())
			}
		}
	}
	until(true)
	if err := os.WriteFile(filepath.Join(manifests, "p.yaml"), []byte("{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: a, image: i}]}}"), 0o644); err != nil {
		t.Fatal(err)
	}
	<-b.reached
	until(false)
	close(b.lifted)
	until(true)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
