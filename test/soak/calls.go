package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// calls counts the results of calls, by RPC and code.
type calls struct {
	judging atomic.Bool

	mu      sync.Mutex
	byRPC   map[string]map[string]int // RPC → outcome → count
	slowest map[string]time.Duration
	example map[string]string // an error, by RPC and outcome
	wrong   []string          // unexplained errors, and wrong answers
	wrongs  int
}

func newCalls() *calls {
	return &calls{byRPC: map[string]map[string]int{}, slowest: map[string]time.Duration{}, example: map[string]string{}}
}

// A subject is the object of a call. It decides which errors of the call are explained.
type subject struct {
	gone func() bool // whether it was stopped or removed, or has ended, meanwhile
	cut  func() bool // whether the caller has given up; nil means never
	all  bool        // any error is allowed
}

type subjectKey struct{}

// about returns a context for calls about an object that others may remove.
func about(ctx context.Context, gone func() bool) context.Context {
	s, _ := ctx.Value(subjectKey{}).(subject)
	s.gone = gone
	return context.WithValue(ctx, subjectKey{}, s)
}

// givesUp returns a context for calls that are given up once cut returns true.
func givesUp(ctx context.Context, cut func() bool) context.Context {
	s, _ := ctx.Value(subjectKey{}).(subject)
	outer := s.cut // a caller that gives up may make calls that are given up, too
	s.cut = func() bool { return cut() || outer != nil && outer() }
	return context.WithValue(ctx, subjectKey{}, s)
}

// within returns a context for calls that are given up after d. The server has the deadline too,
// and its clock may be slightly ahead of the caller's.
func within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, d)
	end, _ := ctx.Deadline()
	return givesUp(ctx, func() bool { return time.Until(end) < 100*time.Millisecond }), cancel
}

// explained returns a context for calls that may fail.
func explained(ctx context.Context) context.Context {
	return context.WithValue(ctx, subjectKey{}, subject{all: true})
}

// count is an interceptor that counts and judges calls.
func (n *node) count(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	began := time.Now()
	err := invoke(ctx, method, req, reply, cc, opts...)
	if s, _ := ctx.Value(subjectKey{}).(subject); !s.all {
		n.judge(ctx, path.Base(method), began, err)
	}
	return err
}

// judge counts the result of a call, and records an unexplained error.
func (n *node) judge(ctx context.Context, name string, began time.Time, err error) {
	took := time.Since(began)
	s, _ := ctx.Value(subjectKey{}).(subject)
	outcome := n.outcome(s, began, err)
	c := n.calls
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byRPC[name] == nil {
		c.byRPC[name] = map[string]int{}
	}
	c.byRPC[name][outcome]++
	c.slowest[name] = max(c.slowest[name], took)
	if err != nil {
		c.example[name+": "+outcome] = err.Error()
	}
	if err != nil && strings.HasPrefix(outcome, unexplained) {
		c.complain(fmt.Sprintf("%s %s after %v: %v", began.Format("15:04:05.000"), name, took.Round(time.Millisecond), err))
	}
}

const unexplained = "! "

func (n *node) outcome(s subject, began time.Time, err error) string {
	code := status.Code(err)
	if code == codes.Unknown && errors.Is(err, context.Canceled) { // the error of a stream
		code = codes.Canceled
	}
	gaveUp := s.cut != nil && s.cut()
	switch {
	case err == nil:
		return "OK"
	case lost(code) && gaveUp:
		return "given up"
	case lost(code) && n.beside(began):
		return code.String() + " (kill)"
	case s.gone != nil && s.gone() && code != codes.InvalidArgument && code != codes.DeadlineExceeded && code != codes.Canceled:
		return code.String() + " (removal)"
	}
	return unexplained + code.String()
}

// lost reports whether a code means that there was no answer. Other codes are answers: a kill must
// not lose anything acknowledged.
func lost(code codes.Code) bool {
	return slices.Contains([]codes.Code{codes.Unavailable, codes.Unknown, codes.Internal, codes.Canceled, codes.DeadlineExceeded}, code)
}

// complain records a fault. c.mu must be locked.
func (c *calls) complain(text string) {
	if c.wrongs++; c.judging.Load() && len(c.wrong) < 50 {
		c.wrong = append(c.wrong, text)
	}
}

func (c *calls) wrongAnswer(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.complain(time.Now().Format("15:04:05.000 ") + fmt.Sprintf(format, args...))
}

// examples returns an error of each explained kind.
func (c *calls) examples() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b strings.Builder
	for _, what := range slices.Sorted(maps.Keys(c.example)) {
		fmt.Fprintf(&b, "%s: %s\n", what, c.example[what])
	}
	return b.String()
}

func (c *calls) failed() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wrongs == 0 {
		return nil
	}
	return fmt.Errorf("%d times something was wrong:\n  %s", c.wrongs, strings.Join(c.wrong, "\n  "))
}

// table returns a line for each RPC.
func (c *calls) table() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\ncall\tOK\tslowest\tothers\n")
	for _, name := range slices.Sorted(maps.Keys(c.byRPC)) {
		var others []string
		for _, o := range slices.Sorted(maps.Keys(c.byRPC[name])) {
			if o != "OK" {
				others = append(others, fmt.Sprintf("%s %d", o, c.byRPC[name][o]))
			}
		}
		fmt.Fprintf(w, "%s\t%d\t%v\t%s\n", name, c.byRPC[name]["OK"], c.slowest[name].Round(time.Millisecond), strings.Join(others, ", "))
	}
	w.Flush()
	return b.String()
}
