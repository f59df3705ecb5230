package agent

import (
	"fmt"
	"testing"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/node"
	"github.com/crisp-cri/crisp/agent/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// counted counts reads of statuses and sums of pods' requests.
type counted struct{ loads, sums int }

func (k *counted) LoadStatus(*v1.Pod) *v1.PodStatus {
	k.loads++
	return nil
}

func (k *counted) SaveStatus(*v1.Pod, *v1.PodStatus) error { return nil }

// summedPods are pods whose requests are counted.
type summedPods struct {
	*node.Pods
	k *counted
}

func (p summedPods) Requests(*v1.Pod) v1.ResourceList {
	p.k.sums++
	return v1.ResourceList{}
}

// none is an unknown node.
type none struct{}

func (none) Pressure() []v1.NodeConditionType { return nil }
func (none) IPs() []string                    { return nil }
func (none) RuntimeName() string              { return "" }

// An agent that starts with many pods checks each against all others, during which it does nothing
// else. So each status is read, and each pod's requests are summed, only once.
func TestManyPodsAreAdmitted(t *testing.T) {
	const many = 1000
	k := &counted{}
	n := node.New("n1", "", nil)
	n.Edit(func(n *v1.Node) { n.Status.Allocatable[v1.ResourcePods] = resource.MustParse("2000") })
	a := &Agent{Node: n, host: nodeHost{Readiness: criruntime.NewMonitor(nil, nil, nil)}}
	d := newAdmitter(a, summedPods{node.NewPods(nil, nil, status.NewStore(none{}, k, nil, nil)), k}, none{})
	var pods []*v1.Pod
	for i := range many {
		pods = append(pods, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p", i), UID: types.UID(fmt.Sprint("u", i))}})
	}
	for _, pod := range pods {
		if v := d.Admit(pod, pods); v != nil {
			t.Fatalf("%s: %+v", pod.Name, v)
		}
	}
	if k.loads > many || k.sums > many {
		t.Errorf("%d statuses were read, %d requests summed, of %d pods", k.loads, k.sums, many)
	}
	// A changed pod is summed again.
	changed := pods[0].DeepCopy()
	if d.Requests(changed); k.sums != many+1 {
		t.Errorf("%d requests were summed after a change", k.sums)
	}
}
