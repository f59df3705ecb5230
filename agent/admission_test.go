package agent

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/crisp-cri/crisp/agent/event"
	"github.com/crisp-cri/crisp/agent/evict"
	"github.com/crisp-cri/crisp/agent/gate"
	"github.com/crisp-cri/crisp/agent/node"
	"github.com/crisp-cri/crisp/agent/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// An agent that begins with many pods holds each against all others, while nothing else
// happens. What has to be read or summed for that is so once for each pod.
func TestManyPodsAreAdmitted(t *testing.T) {
	const many = 1000
	loads, sums := 0, 0
	h := host{node: node.New("n1", "", nil), gate: &gate.Gate{}}
	h.node.Edit(func(n *v1.Node) { n.Status.Allocatable[v1.ResourcePods] = resource.MustParse("2000") })
	d := &admission{
		care: &Care{}, host: h, events: event.Discard, evict: evict.New(evict.Options{Log: slog.New(slog.DiscardHandler)}),
		roster:   &roster{status: &status.Store{Load: func(*v1.Pod) *v1.PodStatus { loads++; return nil }}},
		admitted: map[types.UID]bool{}, summed: map[types.UID]summed{},
		sum: func(*v1.Pod) v1.ResourceList { sums++; return v1.ResourceList{} },
	}
	var pods []*v1.Pod
	for i := range many {
		pods = append(pods, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p", i), UID: types.UID(fmt.Sprint("u", i))}})
	}
	for _, pod := range pods {
		if v := d.admit(pod, pods); v != nil {
			t.Fatalf("%s: %+v", pod.Name, v)
		}
	}
	if loads > many || sums > many {
		t.Errorf("%d statuses were read, %d requests summed, of %d pods", loads, sums, many)
	}
	// One that has changed is summed anew.
	changed := pods[0].DeepCopy()
	if d.requests(changed); sums != many+1 {
		t.Errorf("%d requests were summed after a change", sums)
	}
}
