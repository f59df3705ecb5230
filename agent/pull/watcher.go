package pull

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/crisp-cri/crisp/internal/pullapi"
	"github.com/crisp-cri/crisp/internal/pullapi/pullclient"
	"github.com/crisp-cri/crisp/internal/pulls"
)

// askAgain is the pause before a runtime without the service is asked again, since it may have
// been upgraded.
const askAgain = time.Minute

// listPatience bounds List.
const listPatience = 2 * time.Second

// A Watcher follows the progress of pulls through a stream that crispd serves beside CRI
// (internal/pullapi). It is the agent's only use of anything but CRI, and optional: another
// runtime answers Unimplemented, and then no progress is reported.
type Watcher struct {
	conn  *grpc.ClientConn // nil if the endpoint is invalid
	until atomic.Int64     // when the runtime may be asked again, in Unix seconds
}

// NewWatcher returns a Watcher of the runtime at endpoint ("unix:///run/crisp/crisp.sock"), which
// connects when it is first used. With an invalid endpoint it never reports anything.
func NewWatcher(endpoint string) *Watcher {
	if strings.HasPrefix(endpoint, "/") {
		endpoint = "unix://" + endpoint
	}
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
	if err != nil {
		return &Watcher{}
	}
	return &Watcher{conn: conn}
}

// Close closes the connection.
func (w *Watcher) Close() {
	if w.conn != nil {
		w.conn.Close()
	}
}

// List returns the pulls in progress; none if the runtime does not answer within two seconds or
// does not have the service.
func (w *Watcher) List(ctx context.Context) (list []pulls.Pull) {
	ctx, cancel := context.WithTimeout(ctx, listPatience)
	defer cancel()
	w.watch(ctx, pullapi.Request{Once: true}, func(now []pulls.Pull) error {
		list = now
		return nil
	})
	return list
}

// Follow calls report about once a second with the progress of the pull of image that pod,
// "namespace/name", waits for. It returns when ctx or the stream ends.
func (w *Watcher) Follow(ctx context.Context, image, pod string, report func(pulls.Pull)) {
	w.watch(ctx, pullapi.Request{Image: image, Pod: pod}, func(list []pulls.Pull) error {
		if len(list) > 0 {
			report(list[0])
		}
		return nil
	})
}

func (w *Watcher) watch(ctx context.Context, r pullapi.Request, report func([]pulls.Pull) error) {
	if w.conn == nil || time.Now().Unix() < w.until.Load() {
		return
	}
	err := pullclient.Watch(ctx, w.conn, r, report)
	if status.Code(err) == codes.Unimplemented {
		w.until.Store(time.Now().Add(askAgain).Unix())
	}
}
