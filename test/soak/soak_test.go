package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Some errors are explained, others are not.
func TestJudge(t *testing.T) {
	yes, no := func() bool { return true }, func() bool { return false }
	for _, test := range []struct {
		code   codes.Code
		killed bool
		about  subject
		want   string
	}{
		{codes.OK, true, subject{}, "OK"},
		{codes.Unavailable, false, subject{}, "! Unavailable"},
		{codes.Unavailable, true, subject{}, "Unavailable (kill)"},
		{codes.NotFound, true, subject{}, "! NotFound"}, // an acknowledged object is lost
		{codes.NotFound, false, subject{gone: yes}, "NotFound (removal)"},
		{codes.NotFound, false, subject{gone: no}, "! NotFound"},
		{codes.InvalidArgument, true, subject{gone: yes, cut: yes}, "! InvalidArgument"},
		{codes.DeadlineExceeded, false, subject{gone: yes}, "! DeadlineExceeded"}, // the call hung
		{codes.DeadlineExceeded, false, subject{cut: yes}, "given up"},
		{codes.DeadlineExceeded, false, subject{cut: no}, "! DeadlineExceeded"},
	} {
		n := &node{calls: newCalls()}
		began := time.Now()
		n.downs = []*down{{from: began.Add(-time.Minute), to: began.Add(-again - time.Second)}}
		if test.killed {
			n.downs = append(n.downs, &down{from: began})
		}
		ctx := context.WithValue(t.Context(), subjectKey{}, test.about)
		n.calls.judging.Store(true)
		n.judge(ctx, "Call", began, status.Error(test.code, "told"))
		if n.calls.byRPC["Call"][test.want] != 1 {
			t.Errorf("%v, killed %v: %v, want %q", test.code, test.killed, n.calls.byRPC["Call"], test.want)
		}
		if failed := n.calls.failed() != nil; failed != strings.HasPrefix(test.want, unexplained) {
			t.Errorf("%s fails: %v", test.want, failed)
		}
	}
}

// New objects are found and named.
func TestTableFindsMore(t *testing.T) {
	look := func() *measurement {
		m := &measurement{numbers: map[string]float64{}, things: map[string]int{}, fds: map[string]map[string]int{"crispd": {"/a": 1}}}
		m.numbers["crispd descriptors"], m.numbers["crispd goroutines"] = 20, 30
		m.things["link veth1"] = 1
		m.stacks = map[string]map[string]int{"crispd": {"serve": 30}, "executor": {"serve": 30}}
		return m
	}
	n := &node{before: look(), after: look()}
	if _, problems := n.table(); len(problems) != 0 {
		t.Errorf("nothing is new, and the table has %q", problems)
	}
	n.after.numbers["crispd descriptors"]++
	n.after.fds["crispd"]["/a"]++
	n.after.numbers["crispd goroutines"]++
	n.after.stacks["crispd"]["leaked"] = 1
	n.after.numbers["root"] = 1.5 // MiB; 1 is allowed
	delete(n.after.things, "link veth1")
	n.after.things["link veth2"] = 1 // as many links, but another one
	_, problems := n.table()
	all := strings.Join(problems, "\n")
	for _, want := range []string{"crispd has open /a (2, was 1)", "goroutines leaked (1, was 0)", "root: 1.5 MiB, was 0.0 MiB", "link veth2 (1, was 0)"} {
		if !strings.Contains(all, want) {
			t.Errorf("not reported: %s\n%s", want, all)
		}
	}
}

func TestPercentile(t *testing.T) {
	all := []time.Duration{5, 1, 4, 2, 3}
	for p, want := range map[float64]time.Duration{0: 1, 50: 3, 99: 5, 100: 5} {
		if got := percentile(all, p); got != want {
			t.Errorf("percentile %v is %v, want %v", p, got, want)
		}
	}
}
