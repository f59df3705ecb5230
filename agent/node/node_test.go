package node_test

import (
	"testing"

	"github.com/crisp-cri/crisp/agent/node"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestState(t *testing.T) {
	s := node.New("n1", "v1", []string{"192.0.2.1"})
	changed := func() bool {
		select {
		case <-s.Changed():
			return true
		default:
			return false
		}
	}
	if changed() {
		t.Error("changed before the first change")
	}
	before := s.Node()
	s.SetCondition(v1.NodeReady, v1.ConditionFalse, "A", "")
	s.Edit(func(n *v1.Node) { n.Status.Conditions[0].LastTransitionTime = metav1.Unix(1, 0) })
	s.SetCondition(v1.NodeReady, v1.ConditionFalse, "B", "")
	if c := s.Node().Status.Conditions; len(c) != 1 || c[0].Reason != "B" || c[0].LastTransitionTime.Unix() != 1 {
		t.Errorf("another reason: %+v", c)
	}
	s.SetCondition(v1.NodeReady, v1.ConditionTrue, "C", "")
	if c := s.Node().Status.Conditions; c[0].LastTransitionTime.Unix() == 1 {
		t.Errorf("a transition has no time: %+v", c)
	}
	if len(before.Status.Conditions) != 0 || !changed() || changed() {
		t.Error("what was returned has changed, or the changes were not announced, once")
	}
	if cpu := before.Status.Capacity.Cpu(); cpu.Value() < 1 || before.Status.Capacity.Memory().Value() < 1<<20 || before.Status.NodeInfo.KernelVersion == "" {
		t.Errorf("the machine is not known: %+v", before.Status)
	}
}
