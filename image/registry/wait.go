package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/internal/periodic"
	"go.podman.io/image/v5/docker"
	"golang.org/x/sys/unix"
)

// answerTimeout is how long a registry may take to answer one request. The library itself limits
// only dialling, to 30 s.
const answerTimeout = 40 * time.Second

// maxRequests is the number of requests in one exchange, unless the registry makes the library
// wait: with TLS or without, for a token, for the content, and for its location.
const maxRequests = 4

// atOnce is longer than the time between the answer to one request of an exchange and the next
// one, and shorter than the library waits if it was told to or decides to.
const atOnce = time.Second

// longestRest is longer than the library waits between two requests of its own accord (16 s).
const longestRest = 20 * time.Second

// errNoAnswer is the error for a place that does not answer, whether or not it accepts requests.
var errNoAnswer = errors.New("no answer")

// bounded runs one exchange with the registry.
func (r *Source) bounded(ctx context.Context, exchange func(context.Context) error) error {
	limit := answerTimeout
	if r.limit > 0 {
		limit = min(limit, r.limit)
	}
	within, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// The answer itself may take as long, which cannot be told from a wait.
	w := newWatch(limit, limit, cancel, &PullError{RegistryUnavailable, fmt.Errorf("%w within %v", errNoAnswer, limit)})
	defer w.stop()
	err := exchange(w.follow(within))
	if err != nil && within.Err() != nil && ctx.Err() == nil {
		return context.Cause(within)
	}
	return err
}

// A watch cancels an exchange that takes too long. Each of its requests has a limit, and all of
// them together have that of maxRequests.
//
// A registry that limits requests does answer, with 429 and perhaps a Retry-After. The library
// obeys that, up to a minute and four times, without reporting it, and its transport cannot be
// replaced. So an answer after which nothing comes for the time rest counts as 429: there is more
// use in failing, as the kubelet tries again, than in keeping other pulls waiting.
type watch struct {
	limit  time.Duration
	rest   time.Duration
	end    time.Time // of all requests
	cancel context.CancelCauseFunc
	why    error // the cause of the cancellation

	mu       sync.Mutex
	timer    *time.Timer
	due      time.Time // when the limit ends; guarded by mu
	answered time.Time // when the last request was answered; zero = not yet; guarded by mu
	stopped  bool      // guarded by mu
}

func newWatch(limit, rest time.Duration, cancel context.CancelCauseFunc, why error) *watch {
	now := time.Now()
	w := &watch{limit: limit, rest: rest, due: now.Add(limit), end: now.Add(maxRequests * limit), cancel: cancel, why: why}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(limit, w.ring)
	return w
}

// follow returns the context for the exchange.
func (w *watch) follow(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn:              func(string) { w.request() },
		GotFirstResponseByte: w.answer,
	})
}

func (w *watch) ring() {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.stopped:
	case !w.answered.IsZero():
		w.cancel(&PullError{RegistryUnavailable, fmt.Errorf("%w (429): it has us wait for more than %v", docker.ErrTooManyRequests, min(w.limit, w.rest))})
	default:
		w.cancel(w.why)
	}
}

func (w *watch) request() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.answered.IsZero() && time.Since(w.answered) < atOnce {
		w.due = time.Now().Add(min(w.limit, time.Until(w.end)))
	}
	w.answered = time.Time{}
	w.reset(w.limit)
}

// reset makes the timer ring in d, or when the limit ends. The caller holds w.mu.
func (w *watch) reset(d time.Duration) {
	if !w.stopped {
		w.timer.Reset(min(d, time.Until(w.due)))
	}
}

func (w *watch) answer() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answered = time.Now()
	w.reset(w.rest)
}

func (w *watch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	w.timer.Stop()
}

// isPassing reports whether err may not recur a moment later: that of a registry that is
// overloaded or restarting.
func isPassing(err error) bool {
	if statusOf(err) >= http.StatusInternalServerError || errors.Is(err, unix.ECONNRESET) || errors.Is(err, io.EOF) {
		return true
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok && dns.IsNotFound {
		return false
	}
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}

// pause waits before a second attempt: a second plus jitter, so that not all nodes come back at
// once.
func pause(ctx context.Context) error {
	if !periodic.Pause(ctx, time.Second+rand.N(500*time.Millisecond)) {
		return context.Cause(ctx)
	}
	return nil
}
