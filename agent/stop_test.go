package agent

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/crisp-cri/crisp/agent/autoupdate"
	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/node"
	"github.com/crisp-cri/crisp/agent/podfiles"
	"github.com/crisp-cri/crisp/agent/probe"
	"github.com/crisp-cri/crisp/agent/source"
	"github.com/crisp-cri/crisp/agent/status"
	"github.com/crisp-cri/crisp/agent/worker"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A leaving runtime is down or slow while an agent ends.
type leaving struct {
	internalapi.RuntimeService
	away bool
	slow time.Duration
	cut  bool // whether a call was cancelled
}

func (l *leaving) err() error {
	if l.away {
		return errors.New("away")
	}
	return nil
}

func (l *leaving) Version(context.Context, string) (*cri.VersionResponse, error) {
	return &cri.VersionResponse{}, l.err()
}

func (l *leaving) ListPodSandbox(ctx context.Context, _ *cri.PodSandboxFilter) ([]*cri.PodSandbox, error) {
	if l.slow > 0 {
		select {
		case <-time.After(l.slow):
		case <-ctx.Done():
			l.cut = true
		}
	}
	return nil, l.err()
}

func (l *leaving) ListContainers(context.Context, *cri.ContainerFilter) ([]*cri.Container, error) {
	return nil, l.err()
}

// An agent with the flag to stop its pods exits even if the runtime is down, and otherwise waits
// for slow containers.
func TestStopsWithoutRuntime(t *testing.T) {
	for name, runtime := range map[string]*leaving{"away": {away: true}, "slow": {slow: 10 * time.Minute}} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				files, err := podfiles.Open(podfiles.Options{Root: root, Log: slog.New(slog.DiscardHandler)})
				if err != nil {
					t.Fatal(err)
				}
				log, conn := slog.New(slog.DiscardHandler), criruntime.NewConnection(slog.New(slog.DiscardHandler))
				away := runtime.away
				runtime.away = false // it has answered once
				if _, err := conn.Connect(t.Context(), runtime, nil); err != nil {
					t.Fatal(err)
				}
				runtime.away = away
				driver := criruntime.New(criruntime.Options{Runtime: conn.Runtime(), Root: root, Files: files, Events: status.DiscardEvents, Log: log})
				a := &Agent{o: Options{Root: root, Log: log}, observer: unobserved{}, Files: files, pods: node.NewPods(nil, files, nil), updates: autoupdate.Open(root+"/updates.json", 0, log), Workers: worker.NewWorkers(worker.WorkersOptions{}), stopped: worker.OpenStops(root+"/stopped.json", log), driver: driver, Runtime: conn, results: &probe.Results{}, Wanted: source.NewManager([]string{manifest.SourceFile}, nil)}
				pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "u"}}
				a.Wanted.Update(source.Update{Source: manifest.SourceFile, Files: []source.File{{Path: "f", Objects: []manifest.Object{pod}}}})
				begun := time.Now()
				a.stopPods(t.Context())
				if took := time.Since(begun); runtime.cut || took > max(2*stopPatience, runtime.slow) {
					t.Errorf("it took %v, cut short: %v", took, runtime.cut)
				}
				synctest.Wait()
			})
		})
	}
}

// An agent that is stopped while it connects to its runtime exits without an error: otherwise its
// unit would be "failed".
func TestStopsWhileItConnects(t *testing.T) {
	dir, err := os.MkdirTemp("", "crisp") // short: it is part of a socket's name
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	for name, code := range map[string]error{"by the context": context.Canceled, "by gRPC": grpcstatus.Error(codes.Canceled, "context canceled")} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			a, err := Open(ctx, Options{
				Manifests: dir, Root: dir, NodeIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Node: NodeConfig{NoPodCgroups: true}, Log: slog.New(slog.DiscardHandler),
				Connect: func(context.Context) (internalapi.RuntimeService, internalapi.ImageManagerService, error) {
					return hungUp{cancel: cancel, err: code}, nil, nil
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			if err := a.Run(ctx, Embedding{}); err != nil {
				t.Error(err)
			}
		})
	}
}

// hungUp is a runtime whose client, an agent, is stopped during the Version call.
type hungUp struct {
	internalapi.RuntimeService
	cancel context.CancelFunc
	err    error
}

func (h hungUp) Version(context.Context, string) (*cri.VersionResponse, error) {
	h.cancel()
	return nil, h.err
}
