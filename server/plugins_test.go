package server

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// stopAndRemove stops and removes a sandbox.
func (n *node) stopAndRemove(t *testing.T, sandbox string) {
	t.Helper()
	for range 2 { // CRI: both are idempotent
		if _, err := n.StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: sandbox}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if _, err := n.RemovePodSandbox(t.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: sandbox}); err != nil {
			t.Fatal(err)
		}
	}
}

// A plugin is notified of everything in a pod's life, once and in order.
func TestPluginHearsALife(t *testing.T) {
	n := pluginNode(t)
	p := n.join(t, "00", nil)
	sb := n.run(t, pod("web"))
	c := n.begin(t, sb, forever("server"))
	update := &cri.LinuxContainerResources{CpuShares: 1024}
	if _, err := n.UpdateContainerResources(t.Context(), &cri.UpdateContainerResourcesRequest{ContainerId: c, Linux: update}); err != nil {
		t.Fatal(err)
	}
	resources := &cri.UpdatePodSandboxResourcesRequest{PodSandboxId: sb, Resources: &cri.LinuxContainerResources{CpuShares: 2048}}
	if _, err := n.UpdatePodSandboxResources(t.Context(), resources); err != nil {
		t.Fatal(err)
	}
	if _, err := n.StopContainer(t.Context(), &cri.StopContainerRequest{ContainerId: c, Timeout: 5}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.StopContainer(t.Context(), &cri.StopContainerRequest{ContainerId: c}); err != nil {
		t.Fatal(err)
	}
	n.begin(t, sb, forever("killed"))
	n.stopAndRemove(t, sb)

	want := strings.Fields(`RunPodSandbox web CreateContainer server PostCreateContainer server StartContainer server
		PostStartContainer server UpdateContainer server PostUpdateContainer server UpdatePodSandbox web PostUpdatePodSandbox web StopContainer server
		CreateContainer killed PostCreateContainer killed StartContainer killed PostStartContainer killed StopContainer killed
		StopPodSandbox web RemoveContainer server RemoveContainer killed RemovePodSandbox web`)
	if diff := cmp.Diff(want, strings.Fields(strings.Join(p.notifications(), " "))); diff != "" {
		t.Errorf("what the plugin heard (-want +got):\n%s", diff)
	}
	if got := p.pods["RunPodSandbox"]; got.Id != sb || got.Uid != "uid-web" || got.Namespace != "default" ||
		got.Labels["app"] != "web" || got.Annotations["note"] != "kept as it is" || !slices.Equal(got.Ips, []string{"10.1.2.3", "fd00::3"}) {
		t.Errorf("the pod is shown as %v", got)
	}
	if got := p.pods["UpdatePodSandbox"].Linux.PodResources.Cpu.Shares.Get(); got == nil || *got != 2048 {
		t.Errorf("the pod's new shares are shown as %v, want 2048", got)
	}
	created, started, ended := p.seen["CreateContainer"], p.seen["PostStartContainer"], p.seen["StopContainer"]
	if created.PodSandboxId != sb || created.State != api.ContainerState_CONTAINER_CREATED || created.Labels["name"] != "killed" ||
		created.Annotations["hash"] != "1234" || len(created.Args) == 0 || !slices.Contains(created.Env, "FROM=image") || created.User.Uid != 1000 ||
		*created.Linux.Resources.Cpu.Shares.Get() != 512 || created.Image.ConfigDigest != testID {
		t.Errorf("a container being created is shown as %v", created)
	}
	if started.State != api.ContainerState_CONTAINER_RUNNING || started.Pid == 0 || started.StartedAt == 0 {
		t.Errorf("a started container is shown as %v", started)
	}
	if ended.State != api.ContainerState_CONTAINER_STOPPED || ended.ExitCode != 137 || ended.FinishedAt == 0 {
		t.Errorf("an ended container is shown as %v", ended)
	}
	n.wantNothingLeft(t)
}

// Plugins that work in a pod's network, such as those that move devices into it, find it by its
// path, and take a pod without one for one that has no network of its own (any more).
func TestPluginFindsTheNetworkWhileItExists(t *testing.T) {
	n := pluginNode(t)
	early := n.join(t, "00", nil)
	sb := n.run(t, pod("web"))
	if _, err := n.StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: sb}); err != nil {
		t.Fatal(err)
	}
	late := n.join(t, "01", nil)
	if got := netnsShown(late.pods["Synchronize"]); got != "" {
		t.Errorf("the stopped pod is shown to a plugin that joins with the network namespace %s, which is gone", got)
	}
	n.stopAndRemove(t, sb)
	for _, call := range []string{"RunPodSandbox", "StopPodSandbox"} {
		if netnsShown(early.pods[call]) == "" {
			t.Errorf("%s shows no network namespace", call)
		}
	}
	if got := netnsShown(early.pods["RemovePodSandbox"]); got != "" {
		t.Errorf("RemovePodSandbox shows the network namespace %s, which is gone", got)
	}
	if got := late.pods["Synchronize"].Ips; len(got) != 0 {
		t.Errorf("the stopped pod is shown to a plugin that joins with the addresses %v", got)
	}
	for _, call := range []string{"StopPodSandbox", "RemovePodSandbox"} {
		if got := early.pods[call].Ips; len(got) == 0 || !slices.Equal(got, early.pods["RunPodSandbox"].Ips) {
			t.Errorf("%s shows the addresses %v, RunPodSandbox %v", call, got, early.pods["RunPodSandbox"].Ips)
		}
	}
	n.wantNothingLeft(t)
}

// netnsShown returns the path of a pod's network namespace as a plugin finds it.
func netnsShown(pod *api.PodSandbox) string {
	for _, ns := range pod.Linux.Namespaces {
		if ns.Type == string(specs.NetworkNamespace) {
			return ns.Path
		}
	}
	return ""
}

// Plugins are notified of a container that ends by itself without any call.
func TestPluginHearsAnExit(t *testing.T) {
	n := pluginNode(t)
	ended := make(chan struct{})
	p := n.join(t, "00", map[string]func() error{"StopContainer": func() error { close(ended); return nil }})
	sb := n.run(t, pod("web"))
	n.begin(t, sb, container("short", "exit", "3"))
	<-ended
	if got := p.seen["StopContainer"]; got.ExitCode != 3 {
		t.Errorf("the exit is shown as %v, want code 3", got)
	}
	n.stopAndRemove(t, sb)
	n.wantNothingLeft(t)
}

// While a plugin handles a sandbox or a container it is not listed, and read-only calls do not
// wait. What the plugin rejects is undone, and the retry works.
func TestPluginRefuses(t *testing.T) {
	n := pluginNode(t)
	p := n.join(t, "00", nil)
	refuse := func(call string, do func() error) {
		t.Helper()
		wait, reached, open := gate()
		p.on(call, func() error { _ = wait(); return errors.New("not here") })
		done := make(chan error, 1)
		before := n.listed(t)
		go func() { done <- do() }()
		<-reached
		if diff := cmp.Diff(before, n.listed(t)); diff != "" {
			t.Errorf("listed while %s runs:\n%s", call, diff)
		}
		open()
		err := <-done
		wantCode(t, "refused by "+call, err, "Unavailable")
		if err != nil && !strings.Contains(err.Error(), "not here") {
			t.Errorf("refused by %s: %v, want what the plugin said", call, err)
		}
		p.on(call, nil)
		if diff := cmp.Diff(before, n.listed(t)); diff != "" {
			t.Errorf("listed after %s was refused:\n%s", call, diff)
		}
	}

	refuse("RunPodSandbox", func() error {
		_, err := n.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: pod("web")})
		return err
	})
	n.wantNothingLeft(t)
	sb := n.run(t, pod("web"))

	refuse("CreateContainer", func() error {
		_, err := n.CreateContainer(t.Context(), &cri.CreateContainerRequest{PodSandboxId: sb, Config: forever("server")})
		return err
	})
	if mounts := n.store.Mounts(); len(mounts) > 0 {
		t.Errorf("file systems left by a refused container: %v", mounts)
	}
	c := n.create(t, sb, forever("server"))

	refuse("StartContainer", func() error {
		_, err := n.StartContainer(t.Context(), &cri.StartContainerRequest{ContainerId: c})
		return err
	})
	if st := n.status(t, c).State; st != cri.ContainerState_CONTAINER_CREATED {
		t.Errorf("a container whose start was refused is %v, want created", st)
	}
	if _, err := n.StartContainer(t.Context(), &cri.StartContainerRequest{ContainerId: c}); err != nil {
		t.Errorf("the retry of a refused start: %v", err)
	}
	update := &cri.UpdateContainerResourcesRequest{ContainerId: c, Linux: &cri.LinuxContainerResources{CpuShares: 99}}
	refuse("UpdateContainer", func() error { _, err := n.UpdateContainerResources(t.Context(), update); return err })
	if got := n.status(t, c).Resources.Linux.CpuShares; got != 512 {
		t.Errorf("shares after a refused update are %d, want 512", got)
	}

	// Plugins cannot reject teardown.
	for _, call := range []string{"StopContainer", "StopPodSandbox", "RemoveContainer", "RemovePodSandbox"} {
		p.on(call, func() error { return errors.New("stay") })
	}
	n.stopAndRemove(t, sb)
	n.wantNothingLeft(t)
	undone := strings.Fields("RunPodSandbox web StopPodSandbox web RemovePodSandbox web RunPodSandbox web CreateContainer server StopContainer server RemoveContainer server CreateContainer server")
	if diff := cmp.Diff(undone, strings.Fields(strings.Join(p.notifications(), " "))[:len(undone)]); diff != "" {
		t.Errorf("what the plugin heard of what it refused (-want +got):\n%s", diff)
	}
}

// A plugin's adjustments are in the specification, and in the status where it
// has the field.
func TestPluginAdjusts(t *testing.T) {
	n := pluginNode(t)
	p := n.join(t, "00", nil)
	sb := n.run(t, pod("web"))
	other := n.begin(t, sb, forever("other"))

	a := &api.ContainerAdjustment{}
	a.SetArgs([]string{"/testbin", "sleep", "adjusted"})
	a.AddEnv("FROM", "plugin")
	a.AddAnnotation("plugin", "was here")
	a.AddMount(&api.Mount{Destination: "/extra", Type: "bind", Source: "/tmp", Options: []string{"bind", "ro"}})
	a.SetLinuxMemoryLimit(32 << 20)
	a.SetLinuxCPUSetCPUs("0")
	u := &api.ContainerUpdate{}
	u.SetContainerId(other)
	u.SetLinuxCPUShares(256)
	p.wants(a, u)
	id := n.create(t, sb, forever("server"))
	p.wants(nil)

	c, err := n.runtime.Container(id)
	if err != nil {
		t.Fatal(err)
	}
	spec := c.Config().Spec
	if got := spec.Process.Args; !slices.Equal(got, []string{"/testbin", "sleep", "adjusted"}) {
		t.Errorf("args are %q", got)
	}
	if !slices.Contains(spec.Process.Env, "FROM=plugin") || slices.Contains(spec.Process.Env, "FROM=image") {
		t.Errorf("environment is %q", spec.Process.Env)
	}
	if spec.Annotations["plugin"] != "was here" {
		t.Errorf("annotations are %v", spec.Annotations)
	}
	if !slices.ContainsFunc(spec.Mounts, func(m specs.Mount) bool { return m.Destination == "/extra" && m.Source == "/tmp" }) {
		t.Errorf("no mount at /extra in %v", spec.Mounts)
	}
	r := n.status(t, id).Resources.Linux
	if *spec.Linux.Resources.Memory.Limit != 32<<20 || r.MemoryLimitInBytes != 32<<20 || r.CpusetCpus != "0" || r.CpuShares != 512 {
		t.Errorf("resources in force are %v, shown as %v", spec.Linux.Resources, r)
	}
	if got := n.status(t, other).Resources.Linux.CpuShares; got != 256 {
		t.Errorf("shares of the other container are %d, want 256", got)
	}

	// The plugin's version of an update is applied.
	own := &api.ContainerUpdate{}
	own.SetContainerId(id)
	own.SetLinuxCPUShares(777)
	p.wants(nil, own)
	if _, err := n.UpdateContainerResources(t.Context(), &cri.UpdateContainerResourcesRequest{ContainerId: id, Linux: &cri.LinuxContainerResources{CpuShares: 900, CpuQuota: 50_000}}); err != nil {
		t.Fatal(err)
	}
	if got := n.status(t, id).Resources.Linux; got.CpuShares != 777 || got.CpuQuota != 50_000 {
		t.Errorf("resources after an update are %v, want 777 shares and a quota of 50000", got)
	}

	// The end of one container may change another.
	p.wants(nil)
	u.SetLinuxCPUShares(128)
	long := n.begin(t, sb, forever("long"))
	p.wants(nil, u)
	if _, err := n.StopContainer(t.Context(), &cri.StopContainerRequest{ContainerId: long}); err != nil {
		t.Fatal(err)
	}
	if got := n.status(t, other).Resources.Linux.CpuShares; got != 128 {
		t.Errorf("shares of the other container after a stop are %d, want 128", got)
	}
}

// A plugin may change limits on its own; the answer lists those that failed.
func TestPluginUpdatesUnasked(t *testing.T) {
	n := pluginNode(t)
	p := n.join(t, "00", nil)
	sb := n.run(t, pod("web"))
	id := n.begin(t, sb, forever("server"))
	good, bad := &api.ContainerUpdate{}, &api.ContainerUpdate{}
	good.SetContainerId(id)
	good.SetLinuxMemoryLimit(128 << 20)
	bad.SetContainerId("nobody")
	bad.SetLinuxMemoryLimit(1 << 20)
	failed, err := p.stub.UpdateContainers([]*api.ContainerUpdate{good, bad})
	if err != nil {
		t.Fatal(err)
	}
	if len(failed) != 1 || failed[0].ContainerId != "nobody" {
		t.Errorf("failed updates are %v, want the one of nobody", failed)
	}
	if got := n.status(t, id).Resources.Linux.MemoryLimitInBytes; got != 128<<20 {
		t.Errorf("memory limit is %d, want %d", got, 128<<20)
	}
	if err := (pluginRuntime{n.server}).Evict(t.Context(), id, "test"); err != nil {
		t.Fatal(err)
	}
	c, err := n.runtime.Container(id)
	if err != nil {
		t.Fatal(err)
	}
	<-c.Done()
}

// A plugin that connects learns of every container once: of existing ones by Synchronize, of those
// being created meanwhile by one or the other.
func TestPluginJoins(t *testing.T) {
	n := pluginNode(t)
	n.join(t, "00", nil)
	sb := n.run(t, pod("web"))
	n.begin(t, sb, forever("before"))

	wait, reached, open := gate()
	late := n.join(t, "10", map[string]func() error{"Synchronize": wait})
	<-reached
	const during = 5
	var wg sync.WaitGroup
	for i := range during {
		wg.Go(func() {
			if _, err := n.CreateContainer(t.Context(), &cri.CreateContainerRequest{PodSandboxId: sb, Config: forever(fmt.Sprint("during", i))}); err != nil {
				t.Errorf("create while a plugin joins: %v", err)
			}
		})
	}
	if got := len(n.listed(t)); got < 2 { // the server answers
		t.Errorf("%d listed while a plugin joins, want the sandbox and its container", got)
	}
	open()
	wg.Wait()
	<-late.ready
	n.create(t, sb, forever("after"))

	learned := map[string]int{}
	for _, name := range late.synced {
		learned[name]++
	}
	for _, call := range late.notifications() {
		if name, ok := strings.CutPrefix(call, "CreateContainer "); ok {
			learned[name]++
		}
	}
	want := map[string]int{"web": 1, "before": 1, "after": 1}
	for i := range during {
		want[fmt.Sprint("during", i)] = 1
	}
	if diff := cmp.Diff(want, learned); diff != "" {
		t.Errorf("how often the plugin learned of each (-want +got):\n%s", diff)
	}
}

// A plugin that connects waits for a running creation. If that is undone, the plugins that were
// notified of it are notified of its end, and must not wait for the new one.
func TestPluginJoinsWhileUndone(t *testing.T) {
	n := pluginNode(t)
	wait, reached, open := gate()
	n.join(t, "00", map[string]func() error{"CreateContainer": func() error { wait(); return errors.New("not this one") }})
	sb := n.run(t, pod("web"))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		// An error, unless this takes longer than a plugin's timeout.
		_, _ = n.CreateContainer(t.Context(), &cri.CreateContainerRequest{PodSandboxId: sb, Config: forever("refused")})
	}()
	<-reached
	late := n.join(t, "10", map[string]func() error{"Synchronize": func() error { return nil }})
	for stacks := make([]byte, 1<<20); !strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), ".requestPluginSync("); {
		time.Sleep(time.Millisecond)
	}
	open()
	<-ended
	<-late.ready
	n.stopAndRemove(t, sb)
	n.wantNothingLeft(t)
}

// A plugin that does not answer is dropped, and the operation continues.
func TestPluginHangs(t *testing.T) {
	t.Parallel() // it waits for a plugin to time out
	n := pluginNode(t)
	wait, _, open := gate()
	defer open()
	n.join(t, "00", map[string]func() error{"RunPodSandbox": wait})
	sb := n.run(t, pod("web"))
	n.create(t, sb, forever("server"))
	turn := n.server.plugins.Turn()
	defer turn.End()
	if turn.HasPlugins() {
		t.Error("a plugin that does not answer is still asked")
	}
}

// After a restart plugins connect again and get the existing objects. They are not notified again
// of containers that had ended by then.
func TestPluginAfterRestart(t *testing.T) {
	n := pluginNode(t)
	sb := n.run(t, pod("web"))
	id := n.begin(t, sb, container("short", "exit", "0"))
	c, err := n.runtime.Container(id)
	if err != nil {
		t.Fatal(err)
	}
	<-c.Done()
	n.restart(t)
	p := n.join(t, "00", nil)
	if want := []string{"web", "short"}; !slices.Equal(p.synced, want) {
		t.Errorf("synchronized with %v, want %v", p.synced, want)
	}
	n.stopAndRemove(t, sb)
	want := []string{"StopPodSandbox web", "RemoveContainer short", "RemovePodSandbox web"}
	if diff := cmp.Diff(want, p.notifications()); diff != "" {
		t.Errorf("what the plugin heard (-want +got):\n%s", diff)
	}
}

// The records of notified ends are removed with the containers, with plugins or without.
func TestPluginExitsAreForgotten(t *testing.T) {
	n := pluginNode(t)
	sb := n.run(t, pod("web"))
	for i := range 20 {
		n.begin(t, sb, container(fmt.Sprint("c", i), "exit", "0"))
	}
	n.stopAndRemove(t, sb)
	n.stop() // also ends the goroutines that notify
	n.server.exits.mu.Lock()
	defer n.server.exits.mu.Unlock()
	if kept := len(n.server.exits.notified); kept > 0 {
		t.Errorf("%d ends are kept, want none", kept)
	}
}

// A plugin that changes nothing leaves the swap limit alone, as no plugin does: an update of memory
// is not one of swap.
func TestPluginDoesNotForbidSwap(t *testing.T) {
	n := pluginNode(t)
	n.server.o.SpecHost.SwapLimit = true
	n.join(t, "00", nil)
	config := forever("server")
	config.Linux.Resources.MemorySwapLimitInBytes = 200 << 20
	id := n.begin(t, n.run(t, pod("web")), config)
	_, err := n.UpdateContainerResources(t.Context(), &cri.UpdateContainerResourcesRequest{
		ContainerId: id, Linux: &cri.LinuxContainerResources{MemoryLimitInBytes: 128 << 20},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := n.status(t, id).Resources.Linux; got.MemoryLimitInBytes != 128<<20 || got.MemorySwapLimitInBytes != 200<<20 {
		t.Errorf("the limits are %d, and %d with swap; want %d and %d", got.MemoryLimitInBytes, got.MemorySwapLimitInBytes, 128<<20, 200<<20)
	}
}

// Plugins hear of updates in the order in which they take effect: a plugin that keeps what it heard
// last has what is in force.
func TestPluginHearsUpdatesInOrder(t *testing.T) {
	n := pluginNode(t)
	p := n.join(t, "00", nil)
	id := n.begin(t, n.run(t, pod("web")), forever("server"))
	wait, reached, open := gate()
	n.machine.Fuse.Meet(func(step string) error {
		if step == "update" {
			return wait()
		}
		return nil
	})
	update := func(ctx context.Context, shares int64) error {
		_, err := n.UpdateContainerResources(ctx, &cri.UpdateContainerResourcesRequest{ContainerId: id, Linux: &cri.LinuxContainerResources{CpuShares: shares}})
		return err
	}
	first := make(chan error, 1)
	go func() { first <- update(t.Context(), 100) }()
	<-reached
	hurried, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	wantCode(t, "update during another one", update(hurried, 200), "DeadlineExceeded")
	open()
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	heard := strings.Fields(strings.Join(p.notifications(), " "))
	if want := strings.Fields("PostStartContainer server UpdateContainer server PostUpdateContainer server"); !slices.Equal(heard[len(heard)-len(want):], want) {
		t.Errorf("the plugin heard %v, want at the end %v", heard, want)
	}
}
