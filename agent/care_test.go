package agent

import (
	"slices"
	"testing"

	"github.com/crisp-cri/crisp/agent/desired"
	"github.com/crisp-cri/crisp/agent/gate"
	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/node"
	v1 "k8s.io/api/core/v1"
)

// told is a recorder of events, as "KIND NAME REASON".
type told []string

func (l *told) Event(on v1.ObjectReference, _, reason, _ string) {
	*l = append(*l, on.Kind+" "+on.Name+" "+reason)
}

// A node whose Secrets may come to lie on a disk says so, and no other does.
func TestSwapIsTold(t *testing.T) {
	for _, may := range []bool{true, false} {
		var events told
		c := &care{o: Options{NodeName: "n1"}, events: &events}
		c.tellSwap(may)
		if got := slices.Equal(events, []string{"Node n1 PossibleMemoryBackedVolumesOnDisk"}); got != may || len(events) > 1 {
			t.Errorf("it may swap: %v, told %q", may, events)
		}
	}
}

// Of a runtime that was replaced by a newer one, the node shows the newer one; while it
// does not answer, the last one that did.
func TestVersionOfTheNode(t *testing.T) {
	shown := conditions{node: node.New("n1", "", nil), wanted: desired.New([]string{manifest.SourceFile})}
	for _, c := range []struct{ told, want string }{{"", ""}, {"crisp://1", "crisp://1"}, {"crisp://2", "crisp://2"}, {"", "crisp://2"}} {
		shown.RuntimeChanged(gate.State{Version: c.told})
		if got := shown.node.Node().Status.NodeInfo.ContainerRuntimeVersion; got != c.want {
			t.Errorf("the runtime is %q, the node shows %q", c.told, got)
		}
	}
}
