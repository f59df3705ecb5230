package agent

import (
	"context"
	"time"

	"github.com/crisp-cri/crisp/agent/autoupdate"
	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/pull"
	"github.com/crisp-cri/crisp/agent/status"
	"github.com/crisp-cri/crisp/internal/backoff"
	"github.com/crisp-cri/crisp/internal/periodic"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// DefaultUpdateInterval is how often registries are asked for newer images.
const DefaultUpdateInterval = 24 * time.Hour

// keepImages looks for newer images of pods with manifest.AnnotationAutoUpdate, until ctx ends. After
// a failure it looks again sooner.
func (a *Agent) keepImages(ctx context.Context) {
	interval := a.o.UpdateInterval
	pauses := func() *backoff.Backoff { return backoff.New(min(10*time.Minute, interval), interval) }
	failed, now := pauses(), time.Now()
	due := now.Add(min(interval, time.Minute)) // pods may not run yet
	if at := podsync.After(a.updates.Checked(), interval, now); at.After(due) {
		due = at
	}
	for periodic.Pause(ctx, periodic.Until(due)) {
		if !periodic.Past(due) {
			continue
		}
		if now = time.Now(); !a.findImages(ctx) {
			due = now.Add(failed.Next())
			continue
		}
		a.updates.SetChecked(now)
		failed, due = pauses(), now.Add(interval)
	}
}

// findImages looks for newer images once. It reports whether all registries have answered.
func (a *Agent) findImages(ctx context.Context) bool {
	all := true
	pods := a.Wanted.Pods()
	for _, pod := range pods {
		s := a.Statuses.Get(pod.UID)
		if !manifest.AutoUpdated(pod) || s == nil || podsync.Halted(s) || pod.DeletionTimestamp != nil {
			continue
		}
		changes := map[string]autoupdate.Change{}
		for _, c := range pod.Spec.Containers {
			last := podsync.StatusOf(c.Name, s.ContainerStatuses)
			if manifest.Untagged(&c) != "" || last == nil || last.ImageID == "" {
				continue
			}
			newest, running, err := a.driver.Newest(ctx, pod, &c, last.ImageID)
			if ctx.Err() != nil {
				return false
			}
			if err != nil {
				all = false
				a.Events.Event(status.ContainerRef(pod, c.Name), v1.EventTypeWarning, "ImageNotChecked", "No newer image could be looked for: "+err.Error())
			} else if running != nil && newest.Id != running.Id {
				changes[c.Name] = autoupdate.Change{Tag: c.Image, From: byDigest(running, c.Image), To: byDigest(newest, c.Image)}
			}
		}
		a.updates.Begin(pod, changes, pods, time.Now())
	}
	return all
}

// byDigest returns the name of an image by its digest in the repository of name, or the runtime's ID if
// it was loaded, not pulled.
func byDigest(image *cri.Image, name string) string {
	for _, ref := range image.RepoDigests {
		if pull.Repository(ref) == pull.Repository(name) {
			return ref
		}
	}
	return image.Id
}

// updateImages goes on with updates of images.
func (a *Agent) updateImages() {
	get := a.Statuses.Get
	if !a.host.Readiness.Get().Answers {
		get = func(types.UID) *v1.PodStatus { return nil } // nothing is known now
	}
	for _, pod := range a.updates.Step(a.Wanted.Pods(), a.Wanted.Ready(), get, time.Now()) {
		a.Workers.Set(podsync.KeyOf(pod), a.allocate(pod))
		c := a.updates.Condition(pod)
		if c == nil {
			continue
		}
		kind := v1.EventTypeNormal
		if c.Reason == autoupdate.RolledBack {
			kind = v1.EventTypeWarning
		}
		a.Events.Event(status.PodRef(pod), kind, "Image"+c.Reason, c.Message)
		a.o.Log.Info("image of a pod updated", "pod", podsync.KeyOf(pod).String(), "state", c.Reason, "text", c.Message)
	}
}
