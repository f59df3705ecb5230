package agent

import (
	"testing"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/node"
	"github.com/crisp-cri/crisp/agent/source"
)

// The node shows the runtime's last reported version, even while the runtime is down.
func TestVersionOfTheNode(t *testing.T) {
	shown := nodeConditions{Node: node.New("n1", "", nil), Wanted: source.NewManager([]string{manifest.SourceFile}, nil)}
	for _, c := range []struct{ version, want string }{{"", ""}, {"crisp://1", "crisp://1"}, {"crisp://2", "crisp://2"}, {"", "crisp://2"}} {
		shown.RuntimeChanged(criruntime.State{Version: c.version})
		if got := shown.Node.Node().Status.NodeInfo.ContainerRuntimeVersion; got != c.want {
			t.Errorf("the runtime is %q, the node shows %q", c.version, got)
		}
	}
}
