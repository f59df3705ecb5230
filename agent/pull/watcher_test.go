package pull_test

import (
	"context"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/crisp-cri/crisp/agent/pull"
	"github.com/crisp-cri/crisp/internal/pullapi"
	"github.com/crisp-cri/crisp/internal/pulls"
)

type fixed []pulls.Pull

func (f fixed) Pulls() []pulls.Pull    { return f }
func (fixed) Closing() <-chan struct{} { return nil }

// serve runs a runtime. unknown counts calls of services that it lacks.
func serve(t *testing.T, list fixed) (socket string, unknown *atomic.Int32) {
	t.Helper()
	socket, unknown = filepath.Join(t.TempDir(), "sock"), new(atomic.Int32)
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	if list != nil {
		pullapi.Register(g, list)
	} else {
		g = grpc.NewServer(grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error {
			unknown.Add(1)
			return status.Error(codes.Unimplemented, "no such service")
		}))
	}
	go g.Serve(l)
	t.Cleanup(g.Stop)
	return socket, unknown
}

func TestFollow(t *testing.T) {
	socket, _ := serve(t, fixed{{Image: "other"}, {Image: "reg.test/web:1", Bytes: 3, For: []string{"default/web"}}})
	for _, endpoint := range []string{socket, "unix://" + socket} {
		w := pull.NewWatcher(endpoint)
		ctx, cancel := context.WithCancel(t.Context())
		reported := 0
		w.Follow(ctx, "reg.test/web:1", "default/web", func(p pulls.Pull) {
			if reported++; p.Bytes != 3 {
				t.Errorf("reported %v", p)
			}
			cancel()
		})
		w.Close()
		if reported == 0 {
			t.Errorf("%s: reported nothing", endpoint)
		}
	}
}

// A runtime without the service is not asked at each pull. A missing runtime or an invalid endpoint
// causes no wait.
func TestWithout(t *testing.T) {
	socket, asked := serve(t, nil)
	for _, endpoint := range []string{socket, "/does/not/exist", "\x00:", ""} {
		w := pull.NewWatcher(endpoint)
		for range 3 {
			w.Follow(t.Context(), "web", "default/web", func(p pulls.Pull) { t.Errorf("%s: reported %v", endpoint, p) })
		}
		w.Close()
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("asked %d times, want once", n)
	}
}
