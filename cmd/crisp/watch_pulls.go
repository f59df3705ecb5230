package main

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/internal/pullapi"
	"github.com/crisp-cri/crisp/internal/pulls"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// A pullWatch adds the pull progress of waiting pods to a watch: a line for each change of the
// text, at most one per second.
type pullWatch struct {
	mu    sync.Mutex
	show  func(u unstructured.Unstructured, pulling string) error // guarded by mu
	pods  map[string]unstructured.Unstructured                    // those that wait, by namespace/name; guarded by mu
	shown map[string]string                                       // the last text of those that wait for a pull; guarded by mu
}

// changed prints a pod that has changed.
func (w *pullWatch) changed(u unstructured.Unstructured) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := u.GetNamespace() + "/" + u.GetName()
	if pods := podsIn([]unstructured.Unstructured{u}); len(pods) == 1 && waits(pods[0]) {
		w.pods[key] = u
	} else {
		delete(w.pods, key)
	}
	delete(w.shown, key)
	return w.show(u, "")
}

// pulling prints the pods whose pulls have made progress.
func (w *pullWatch) pulling(under []pulls.Pull) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(w.pods)) {
		p, ok := pulls.Of(under, key)
		if !ok {
			delete(w.shown, key) // the pod's status has the outcome
			continue
		}
		if text := "Pulling " + p.String(); text != w.shown[key] {
			w.shown[key] = text
			if err := w.show(w.pods[key], text); err != nil {
				return err
			}
		}
	}
	return nil
}

// pullsAgain is the pause before a runtime that did not report pulls is asked again.
const pullsAgain = 2 * time.Second

// watchPulls prints the progress of pulls until ctx ends. It keeps trying: the runtime may not
// report pulls, or may be restarting.
func (c *cli) watchPulls(ctx context.Context, w *pullWatch) {
	conn, err := c.dialRuntime()
	if err != nil {
		return
	}
	defer conn.Close()
	for ctx.Err() == nil {
		var shown error
		_ = pullapi.Watch(ctx, conn, pullapi.Request{Interval: time.Second}, func(list []pulls.Pull) error {
			shown = w.pulling(list)
			return shown
		})
		if shown != nil {
			return // the output is closed, which the next change of a pod will find too
		}
		select {
		case <-ctx.Done():
		case <-time.After(pullsAgain):
		}
	}
}
