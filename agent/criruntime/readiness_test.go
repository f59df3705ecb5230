package criruntime_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/crisp-cri/crisp/agent/criruntime"
	internalapi "k8s.io/cri-api/pkg/apis"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type watched struct {
	internalapi.RuntimeService

	mu      sync.Mutex
	down    bool
	network bool
	version string
}

func (r *watched) Status(context.Context, bool) (*cri.StatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down {
		return nil, errors.New("no socket")
	}
	return &cri.StatusResponse{
		Status: &cri.RuntimeStatus{Conditions: []*cri.RuntimeCondition{
			{Type: cri.RuntimeReady, Status: true},
			{Type: cri.NetworkReady, Status: r.network, Reason: "NoNetwork", Message: "no file"},
		}},
		RuntimeHandlers: []*cri.RuntimeHandler{{Name: "runc"}, {Name: ""}},
	}, nil
}

func (r *watched) Version(context.Context, string) (*cri.VersionResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &cri.VersionResponse{RuntimeName: "crisp", RuntimeVersion: r.version}, nil
}

// lists succeed unless there is an error.
type lists struct {
	mu    sync.Mutex
	wrong error
}

func (l *lists) Health() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.wrong
}

func (l *lists) set(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wrong = err
}

type watcher func(criruntime.State)

func (w watcher) RuntimeChanged(s criruntime.State) { w(s) }

func (r *watched) set(down, network bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down, r.network = down, network
}

// A runtime may be replaced by a newer one between two polls. The node shows the current version.
func TestUpgrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var versions []string
		r := &watched{network: true, version: "1"}
		g := criruntime.NewMonitor(r, watcher(func(s criruntime.State) { versions = append(versions, s.Version) }), slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		go g.Run(ctx, &lists{})
		time.Sleep(time.Minute)
		r.mu.Lock()
		r.version = "2"
		r.mu.Unlock()
		time.Sleep(time.Minute)
		cancel()
		synctest.Wait()
		if got := strings.Join(versions, " "); got != "crisp://1 crisp://2" {
			t.Errorf("got %s", got)
		}
	})
}

// A change is reported once, at most five seconds later.
func TestMonitor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log []string
		begun := time.Now()
		r := &watched{}
		g := criruntime.NewMonitor(r, watcher(func(s criruntime.State) {
			log = append(log, fmt.Sprintf("%.0f %v %v host=%v pod=%v %s", time.Since(begun).Seconds(), s.Answers, s.NetworkReady, s.Ready(true), s.Ready(false), s.Reason))
		}), slog.New(slog.DiscardHandler))
		if g.Get().Ready(true) {
			t.Error("ready before the first answer")
		}
		ctx, cancel := context.WithCancel(t.Context())
		go g.Run(ctx, &lists{})
		for _, step := range []struct{ down, network bool }{{false, false}, {false, true}, {true, false}, {false, true}} {
			r.set(step.down, step.network)
			time.Sleep(21 * time.Second)
		}
		if names := g.Get().HandlerNames(); strings.Join(names, ",") != ",runc" || g.Get().Handler("none") != nil {
			t.Errorf("handlers %q", names)
		}
		cancel()
		synctest.Wait()
		want := "0 true false host=true pod=false NoNetwork\n25 true true host=true pod=true \n45 false false host=false pod=false RuntimeDoesNotAnswer\n65 true true host=true pod=true "
		if got := strings.Join(log, "\n"); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	})
}

// A runtime that answers but lists nothing is not ready, and the reason says so.
func TestNoLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		health := &lists{}
		g := criruntime.NewMonitor(&watched{network: true}, watcher(func(criruntime.State) {}), slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		go g.Run(ctx, health)
		for _, err := range []error{nil, errors.New("no lists"), nil} {
			health.set(err)
			time.Sleep(6 * time.Second)
			if s := g.Get(); s.Ready(false) != (err == nil) || err != nil && s.Message != "no lists" {
				t.Errorf("%v: ready %v: %s: %s", err, s.Ready(false), s.Reason, s.Message)
			}
		}
		cancel()
	})
}
