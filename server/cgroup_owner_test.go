package server

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci"
)

// The owner of a cgroup is reported with the kubelet's labels, only for its full ID: the name of a
// cgroup is not a prefix of an ID.
func TestOwnerOfACgroup(t *testing.T) {
	n := newNode(t)
	owners := cgroupOwners{n.server}
	config := pod("web")
	config.Linux.CgroupParent = "/kubepods/pod1"
	sb := n.run(t, config)
	id := n.begin(t, sb, forever("server"))

	o, err := owners.Object(id)
	if err != nil {
		t.Fatal(err)
	}
	if o.ID != id || o.Sandbox != sb || o.Image != testImage || o.Pid == 0 || o.Exit != nil || o.CreatedAt.IsZero() || !slices.Contains(o.Spec.Process.Env, "FROM=image") {
		t.Errorf("container: %+v", o)
	}
	if diff := cmp.Diff(forever("server").Labels, o.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if got := o.Spec.Annotations["io.kubernetes.cri.container-type"]; got != "container" {
		t.Errorf("container type %q", got)
	}
	if c, err := n.runtime.Container(id); err != nil || c.Config().Spec.Annotations != nil {
		t.Errorf("the container's own spec has changed: %v, %v", c.Config().Spec.Annotations, err)
	}
	p, err := owners.Object(sb)
	if err != nil {
		t.Fatal(err)
	}
	if p.ID != sb || p.Sandbox != "" || p.Image == "" || p.Pid != 0 || p.Spec.Process == nil || p.Spec.Annotations["io.kubernetes.cri.sandbox-name"] != "web" {
		t.Errorf("sandbox: %+v", p)
	}
	if diff := cmp.Diff(config.Labels, p.Labels); diff != "" {
		t.Errorf("labels of sandbox (-want +got):\n%s", diff)
	}
	for _, unknown := range []string{id[:20], sb[:20], "", strings.Repeat("0", 64)} {
		if _, err := owners.Object(unknown); !errors.Is(err, fault.NotFound) {
			t.Errorf("%q: %v", unknown, err)
		}
	}
	if got := owners.Inmates(sb); !slices.Equal(got, []int{o.Pid}) {
		t.Errorf("inmates %v, want %d", got, o.Pid)
	}
	if err := owners.StandIn(sb, true); err != nil {
		t.Fatal(err)
	}
	if left := n.machine.Left(); !slices.ContainsFunc(left, func(s string) bool { return strings.Contains(s, "/kubepods/pod1/"+sb) }) {
		t.Errorf("no stand-in: %v", left)
	}

	if _, err := n.StopContainer(t.Context(), &cri.StopContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	if o, err = owners.Object(id); err != nil || o.Exit == nil || o.Exit.Code != 137 || o.Pid != 0 {
		t.Errorf("ended: %+v, %v", o, err)
	}
	if got := owners.Inmates(sb); len(got) > 0 {
		t.Errorf("inmates %v after the end", got)
	}
	if _, err := n.StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: sb}); err != nil {
		t.Fatal(err)
	}
	if err := owners.StandIn(sb, true); err != nil {
		t.Errorf("stand-in of a sandbox that has ended: %v", err)
	}
	if _, err := n.RemovePodSandbox(t.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: sb}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(owners.StandIn(sb, true), owners.StandIn(sb, false)); err != nil {
		t.Errorf("stand-in of a sandbox that is gone: %v", err)
	}
	n.wantNothingLeft(t)
}

// A pod on the node's network is in the network namespace of a process that never ends.
func TestInmatesOfTheNode(t *testing.T) {
	n := newNode(t)
	config := pod("node")
	config.Linux.CgroupParent = "/kubepods/pod2"
	config.Linux.SecurityContext.NamespaceOptions.Network = cri.NamespaceMode_NODE
	config.PortMappings = nil
	sb := n.run(t, config)
	got := cgroupOwners{n.server}.Inmates(sb)
	if len(got) != 1 || got[0] != 1 && got[0] != os.Getpid() {
		t.Errorf("inmates %v", got)
	}
	if s, err := n.runtime.Sandbox(sb); err != nil || s.State() != oci.SandboxReady {
		t.Errorf("sandbox: %v, %v", s, err)
	}
}
