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

// A pullWatch adds to the lines of watched pods how far the images are that they wait for: one line for
// each change of the text, at most one in a second.
type pullWatch struct {
	mu    sync.Mutex
	show  func(u unstructured.Unstructured, pulling string) error // guarded by mu
	pods  map[string]unstructured.Unstructured                    // that wait, by namespace/name; guarded by mu
	shown map[string]string                                       // what was shown last of those that wait for a pull; guarded by mu
}

// changed shows a pod that has changed.
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

// pulling shows the pods whose pulls have come further.
func (w *pullWatch) pulling(under []pulls.Pull) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(w.pods)) {
		p, ok := pulls.Of(under, key)
		if !ok {
			delete(w.shown, key) // what became of it, the pod's status says
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

// pullsAgain is how long it takes to ask a runtime again that did not tell of pulls.
const pullsAgain = 2 * time.Second

// watchPulls shows how far pulls are until ctx ends. A runtime that does not tell is no error, and one
// that was restarted is asked again.
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
			return // nobody reads any more, which the next change of a pod finds out too
		}
		select {
		case <-ctx.Done():
		case <-time.After(pullsAgain):
		}
	}
}
