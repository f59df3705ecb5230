package server

import (
	"errors"
	"slices"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A container that is being removed cannot be started: its program would run where its root file
// system was, in a directory of the host.
func TestStartBesideRemoveContainer(t *testing.T) {
	n := newNode(t)
	sb := n.run(t, pod("web"))
	c := n.create(t, sb, forever("server"))
	var err error
	n.store.unmount = func(string) {
		_, err = n.StartContainer(t.Context(), &cri.StartContainerRequest{ContainerId: c})
	}
	if _, err := n.RemoveContainer(t.Context(), &cri.RemoveContainerRequest{ContainerId: c}); err != nil {
		t.Fatal(err)
	}
	wantCode(t, "start of a container whose root file system is being removed", err, "FailedPrecondition")
	n.stopAndRemove(t, sb)
	n.wantNothingLeft(t)
}

// A container that cannot be removed keeps neither the other containers of its pod, nor, once the
// reason is gone, the pod.
func TestRemovePodWithAContainerThatStays(t *testing.T) {
	n := newNode(t)
	sb := n.run(t, pod("web"))
	first, second := n.begin(t, sb, forever("first")), n.begin(t, sb, forever("second"))
	n.store.failing("Unmount "+first, errors.New("broken for the test"))
	_, err := n.RemovePodSandbox(t.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: sb})
	wantCode(t, "removal of a pod with a container that cannot be removed", err, "Unknown")
	if got, want := n.listed(t), []string{sb, first}; !slices.Equal(got, want) {
		t.Errorf("left are %v, want %v without %s", got, want, second)
	}
	n.store.failing("Unmount "+first, nil)
	n.stopAndRemove(t, sb)
	n.wantNothingLeft(t)
}

// crispd dies between the beginning of a removal and the release of the file systems: the next one
// finishes both.
func TestRemovalIsFinishedAfterACrash(t *testing.T) {
	n := newNode(t)
	sb := n.run(t, pod("web"))
	id := n.create(t, sb, forever("server"))
	c, err := n.runtime.Container(id)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.BeginRemove(); err != nil {
		t.Fatal(err)
	}
	n.restart(t)
	if got := n.listed(t); !slices.Equal(got, []string{sb}) {
		t.Errorf("left are %v, want only the sandbox %s", got, sb)
	}
	if got := n.store.Mounts(); len(got) > 0 {
		t.Errorf("left are the file systems %v", got)
	}
	n.stopAndRemove(t, sb)
	n.wantNothingLeft(t)
}

// A pod is updated while it is stopped: its address is gone, although the update began before, and
// the new resources are not lost, although the stop ended before.
func TestUpdateBesideStopPodSandbox(t *testing.T) {
	n := pluginNode(t)
	p := n.join(t, "00", nil)
	sb := n.run(t, pod("web"))
	wait, reached, open := gate()
	p.on("UpdatePodSandbox", wait)
	updated := make(chan error, 1)
	go func() {
		_, err := n.UpdatePodSandboxResources(t.Context(), &cri.UpdatePodSandboxResourcesRequest{
			PodSandboxId: sb, Resources: &cri.LinuxContainerResources{CpuShares: 2048},
		})
		updated <- err
	}()
	<-reached
	if _, err := n.StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: sb}); err != nil {
		t.Fatal(err)
	}
	open()
	if err := <-updated; err != nil {
		t.Fatal(err)
	}
	for _, when := range []string{"at once", "after a restart"} {
		object, err := n.runtime.Sandbox(sb)
		if err != nil {
			t.Fatal(err)
		}
		rec := n.server.index.sandbox(object)
		if len(rec.addresses()) > 0 {
			t.Errorf("%s: the stopped pod has the addresses %v", when, rec.addresses())
		}
		if got := rec.resources.GetResources().GetCpuShares(); got != 2048 {
			t.Errorf("%s: the pod has %d shares, want 2048", when, got)
		}
		n.restart(t)
	}
	n.stopAndRemove(t, sb)
	n.wantNothingLeft(t)
}

// What a call finds out about an object that was removed meanwhile is not kept.
func TestNothingIsKeptOfWhatIsRemoved(t *testing.T) {
	n := newNode(t)
	config := pod("web")
	config.Linux.CgroupParent = "/" // which outlives the pod, as the kubelet's does
	sb := n.run(t, config)
	id := n.begin(t, sb, forever("server"))
	object, err := n.runtime.Sandbox(sb)
	if err != nil {
		t.Fatal(err)
	}
	c, err := n.runtime.Container(id)
	if err != nil {
		t.Fatal(err)
	}
	n.stopAndRemove(t, sb)
	// As calls do that found the objects before.
	n.server.index.sandbox(object)
	n.server.index.container(c)
	if got := n.server.sandboxStats(object); got.Linux.Cpu == nil {
		t.Error("there are no statistics of the cgroup, so this test shows nothing")
	}
	for what, m := range map[string]interface{ Range(func(k, v any) bool) }{"sandboxes": &n.server.index.sandboxes, "containers": &n.server.index.containers} {
		m.Range(func(id, _ any) bool {
			t.Errorf("the record of %v is kept, of %s", id, what)
			return true
		})
	}
	if got := len(n.server.cpu.seen); got > 0 {
		t.Errorf("%d samples of CPU usage are kept", got)
	}
}
