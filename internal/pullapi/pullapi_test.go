package pullapi_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/internal/pullapi"
	"github.com/crisp-cri/crisp/internal/pullapi/pullclient"
	"github.com/crisp-cri/crisp/internal/pulls"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
)

type fixed []pulls.Pull

func (f fixed) Pulls() []pulls.Pull    { return f }
func (fixed) Closing() <-chan struct{} { return nil }

// dial connects to a server with these pulls; with nil, to one that lacks the service.
func dial(t *testing.T, list fixed) *grpc.ClientConn {
	t.Helper()
	l := bufconn.Listen(1 << 16)
	g := grpc.NewServer()
	if list != nil {
		pullapi.Register(g, list)
	}
	go g.Serve(l)
	t.Cleanup(g.Stop)
	conn, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// crispd's state of a pull arrives unchanged, filtered by the requested image or pod.
func TestWatch(t *testing.T) {
	begun := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	web := pulls.Pull{
		Image: "docker.io/library/web:latest", From: "mirror.test", Mirror: true, Stage: "layers", Begun: begun, Waiters: 2, For: []string{"default/web"},
		Bytes: 1 << 50, Total: 1<<50 + 1, Rate: 12.5, AllKnown: true, Layers: []pulls.Layer{{Digest: "sha256:0", Size: -1, Bytes: 1 << 50, State: pulls.Downloading}},
	}
	db := pulls.Pull{Image: "reg.test/db:1", Begun: begun}
	conn := dial(t, fixed{web, db})
	for _, test := range []struct {
		of   pullapi.Request
		want []pulls.Pull
	}{
		{pullapi.Request{}, []pulls.Pull{web, db}},
		{pullapi.Request{Image: "web"}, []pulls.Pull{web}},
		{pullapi.Request{Pod: "default/web"}, []pulls.Pull{web}},
		{pullapi.Request{Image: "reg.test/db:1", Pod: "default/web"}, []pulls.Pull{}},
	} {
		test.of.Once = true
		answers := 0
		err := pullclient.Watch(t.Context(), conn, test.of, func(got []pulls.Pull) error {
			answers++
			if d := cmp.Diff(test.want, got); d != "" {
				t.Errorf("%+v: %s", test.of, d)
			}
			return nil
		})
		if err != nil || answers != 1 {
			t.Errorf("%+v: %d answers, %v", test.of, answers, err)
		}
	}
}

// The stream continues until its client ends it or leaves.
func TestStream(t *testing.T) {
	conn := dial(t, fixed{{Image: "a"}})
	enough := errors.New("enough")
	answers := 0
	err := pullclient.Watch(t.Context(), conn, pullapi.Request{Interval: time.Nanosecond}, func([]pulls.Pull) error {
		if answers++; answers == 3 {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) {
		t.Errorf("the stream ended with %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := pullclient.Watch(ctx, conn, pullapi.Request{Interval: time.Hour}, func([]pulls.Pull) error { cancel(); return nil }); err == nil {
		t.Error("Watch returned no error though its client had left")
	}
}

// Other runtimes lack the service.
func TestUnimplemented(t *testing.T) {
	err := pullclient.Watch(t.Context(), dial(t, nil), pullapi.Request{}, func([]pulls.Pull) error { return nil })
	if err == nil {
		t.Error("a server without the service has answered")
	}
}
