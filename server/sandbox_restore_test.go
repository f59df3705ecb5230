package server

import (
	"context"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Subscribers get no event of a restore that fails; if it succeeds they get the pod's first,
// then its containers'.
func TestEventsOfRestoredPod(t *testing.T) {
	n := newNode(t)
	sandbox := n.run(t, pod("web"))
	one, two := n.begin(t, sandbox, forever("one")), n.begin(t, sandbox, forever("two"))
	output := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := n.CheckpointPod(ctx, &cri.CheckpointPodRequest{PodSandboxId: sandbox, OutputPath: output, ContainerIds: []string{one, two}}); err != nil {
		t.Fatal(err)
	}
	stream, err := n.GetContainerEvents(ctx, &cri.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for !n.server.events.hub.HasSubscribers() { // the subscription has no answer to wait for
		time.Sleep(time.Millisecond)
	}
	config := pod("web")
	config.Metadata.Uid = "another"
	good := &cri.RestorePodRequest{CheckpointPath: output, Config: config, ContainerConfigs: []*cri.ContainerConfig{forever("one"), forever("two")}}
	bad := proto.Clone(good).(*cri.RestorePodRequest)
	bad.ContainerConfigs[1].Args = []string{"exit", "0"} // found only when the first container exists
	_, err = n.RestorePod(ctx, bad)
	wantCode(t, "another command", err, "InvalidArgument")
	resp, err := n.RestorePod(ctx, good)
	if err != nil {
		t.Fatal(err)
	}
	const created, started = cri.ContainerEventType_CONTAINER_CREATED_EVENT, cri.ContainerEventType_CONTAINER_STARTED_EVENT
	for _, want := range []struct {
		id  string
		typ cri.ContainerEventType
	}{
		{resp.PodSandboxId, created},
		{resp.PodSandboxId, started},
		{resp.RestoredContainers[0].ContainerId, created},
		{resp.RestoredContainers[1].ContainerId, created},
	} {
		ev, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if ev.ContainerId != want.id || ev.ContainerEventType != want.typ || len(ev.ContainersStatuses) != 2 {
			t.Errorf("event is %v, want %v of %s with two containers", ev, want.typ, want.id)
		}
	}
}

// No container is listed before its pod.
func TestContainerOfHiddenPod(t *testing.T) {
	n := newNode(t)
	sandbox := n.run(t, pod("web"))
	id := n.begin(t, sandbox, forever("c"))
	hide := func(hidden bool) {
		n.server.sandboxes.mu.Lock()
		defer n.server.sandboxes.mu.Unlock()
		if hidden {
			n.server.sandboxes.hidden[sandbox] = struct{}{}
		} else {
			delete(n.server.sandboxes.hidden, sandbox)
		}
	}
	hide(true)
	_, err := n.ContainerStatus(t.Context(), &cri.ContainerStatusRequest{ContainerId: id})
	wantCode(t, "while its pod is hidden", err, "NotFound")
	hide(false)
	if st := n.status(t, id); st.State != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("container is %v", st.State)
	}
}
