// Package pullwatch follows how far pulls are, by a stream that crispd has beside CRI
// (internal/pullapi). It is the one thing that the agent asks a runtime for that CRI does not
// have, and it does without: another runtime says Unimplemented, and then nobody is told
// anything.
package pullwatch

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
	"github.com/crisp-cri/crisp/internal/pulls"
)

// askAgain is how long a runtime without the service is not asked again. It may be upgraded.
const askAgain = time.Minute

// listPatience is how long a runtime is waited for that is only asked once.
const listPatience = 2 * time.Second

// A Watcher asks one runtime.
type Watcher struct {
	conn  *grpc.ClientConn // nil: there is nothing to ask
	until atomic.Int64     // not to be asked before, in Unix time
}

// New returns a Watcher of the runtime at endpoint ("unix:///run/crisp/crisp.sock"). It
// connects when it is first used. Of an endpoint that cannot be one it never tells anything.
func New(endpoint string) *Watcher {
	if strings.HasPrefix(endpoint, "/") {
		endpoint = "unix://" + endpoint
	}
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
	if err != nil {
		return &Watcher{}
	}
	return &Watcher{conn: conn}
}

// Close ends the connection.
func (w *Watcher) Close() {
	if w.conn != nil {
		w.conn.Close()
	}
}

// List returns the pulls under way; none if the runtime does not tell.
func (w *Watcher) List(ctx context.Context) (list []pulls.Pull) {
	ctx, cancel := context.WithTimeout(ctx, listPatience)
	defer cancel()
	w.watch(ctx, pullapi.Request{Once: true}, func(now []pulls.Pull) error {
		list = now
		return nil
	})
	return list
}

// Follow calls report about once a second with how far the pull of image is, for as long as
// ctx: the one that pod waits for, namespace/name.
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
	err := pullapi.Watch(ctx, w.conn, r, report)
	if status.Code(err) == codes.Unimplemented {
		w.until.Store(time.Now().Add(askAgain).Unix())
	}
}
