package housekeeping

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/crisp-cri/crisp/agent/event"
	"github.com/crisp-cri/crisp/internal/poke"
)

// refresh is how often volumes are refreshed even if no object has changed.
const refresh = 30 * time.Second

// keepVolumes keeps volumes up to date with their objects, until ctx ends.
func (k *Keeper) keepVolumes(ctx context.Context) {
	tick := time.NewTicker(refresh)
	defer tick.Stop()
	reported := map[types.UID]string{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-k.volumesDue:
		}
		failing := map[types.UID]string{}
		for _, pod := range k.o.Pods.Active(k.o.Pods.Wanted()) {
			err := k.o.Driver.Volumes().Refresh(pod)
			if err == nil {
				continue
			}
			failing[pod.UID] = err.Error()
			if reported[pod.UID] != err.Error() {
				k.o.Events.Event(event.Pod(pod), v1.EventTypeWarning, "FailedMount", "volume not brought up to date: "+err.Error())
			}
		}
		reported = failing
	}
}

// RefreshVolumes makes the Keeper refresh volumes soon. It is called when objects that they may
// project have changed.
func (k *Keeper) RefreshVolumes() { poke.Wake(k.volumesDue) }
