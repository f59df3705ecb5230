package agent

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/crisp-cri/crisp/agent/event"
	"github.com/crisp-cri/crisp/internal/poke"
)

// refresh is how often volumes are brought up to date besides when an object
// changes.
const refresh = 30 * time.Second

// keepVolumes has volumes show what their objects say.
func (c *care) keepVolumes(ctx context.Context) {
	tick := time.NewTicker(refresh)
	defer tick.Stop()
	told := map[types.UID]string{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-c.volumesDue:
		}
		for _, pod := range c.roster.active(c.wanted.Pods()) {
			err := c.driver.Volumes().Refresh(pod)
			if err == nil {
				delete(told, pod.UID)
			} else if told[pod.UID] != err.Error() {
				told[pod.UID] = err.Error()
				c.events.Event(event.Pod(pod), v1.EventTypeWarning, "FailedMount", "volume not brought up to date: "+err.Error())
			}
		}
	}
}

// refreshVolumes has volumes brought up to date soon.
func (a *agent) refreshVolumes() {
	poke.Wake(a.care.volumesDue)
}
