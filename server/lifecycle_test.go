package server

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/image/rootfs"
	"github.com/crisp-cri/crisp/oci"
)

// A pod's whole life, with everything that CRI requires in the responses.
func TestLifeOfAPod(t *testing.T) {
	n := newNode(t)
	config := pod("web")
	config.LogDirectory = filepath.Join(t.TempDir(), "logs")
	sb := n.run(t, config)

	resp, err := n.PodSandboxStatus(t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: sb[:12], Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	want := &cri.PodSandboxStatus{
		Id: sb, Metadata: config.Metadata, State: cri.PodSandboxState_SANDBOX_READY, CreatedAt: resp.Status.CreatedAt,
		Network: &cri.PodSandboxNetworkStatus{Ip: "10.1.2.3", AdditionalIps: []*cri.PodIP{{Ip: "fd00::3"}}},
		Linux:   &cri.LinuxPodSandboxStatus{Namespaces: &cri.Namespace{Options: config.Linux.SecurityContext.NamespaceOptions}},
		Labels:  config.Labels, Annotations: config.Annotations,
	}
	if diff := cmp.Diff(want, resp.Status, protocmp.Transform()); diff != "" {
		t.Errorf("status of sandbox (-want +got):\n%s", diff)
	}
	if resp.Status.CreatedAt == 0 || resp.Timestamp == 0 || resp.Info["info"] == "" {
		t.Errorf("status of sandbox lacks its times or info: %v", resp)
	}

	c := forever("server")
	c.LogPath = "server/0.log"
	source := filepath.Join(t.TempDir(), "made", "for", "us")
	c.Mounts = []*cri.Mount{{ContainerPath: "/data", HostPath: source, Readonly: true}}
	id := n.begin(t, sb, c)
	got := n.status(t, id)
	wantC := &cri.ContainerStatus{
		Id: id, Metadata: c.Metadata, State: cri.ContainerState_CONTAINER_RUNNING, CreatedAt: got.CreatedAt, StartedAt: got.StartedAt,
		Image:    &cri.ImageSpec{Image: testImage, UserSpecifiedImage: "test"},
		ImageRef: testDigest, ImageId: testID, Labels: c.Labels, Annotations: c.Annotations, Mounts: c.Mounts,
		LogPath:    filepath.Join(config.LogDirectory, "server/0.log"),
		Resources:  &cri.ContainerResources{Linux: c.Linux.Resources},
		User:       &cri.ContainerUser{Linux: &cri.LinuxContainerUser{Uid: 1000, Gid: 50, SupplementalGroups: []int64{50, 60}}},
		StopSignal: cri.Signal_SIGNAL_SIGQUIT,
	}
	if diff := cmp.Diff(wantC, got, protocmp.Transform()); diff != "" {
		t.Errorf("status of container (-want +got):\n%s", diff)
	}
	if got.CreatedAt == 0 || got.StartedAt < got.CreatedAt {
		t.Errorf("container created at %d, started at %d", got.CreatedAt, got.StartedAt)
	}
	if info, err := os.Stat(source); err != nil || !info.IsDir() {
		t.Errorf("a missing mount source was not made: %v", err)
	}
	if _, err := os.Stat(filepath.Dir(got.LogPath)); err != nil {
		t.Errorf("log directory: %v", err)
	}

	// The sandbox's status also has its containers, as of its timestamp.
	resp, err = n.PodSandboxStatus(t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: sb})
	if err != nil {
		t.Fatal(err)
	}
	if len(resp.ContainersStatuses) != 1 || resp.ContainersStatuses[0].Id != id {
		t.Errorf("containers in status of sandbox: %v", resp.ContainersStatuses)
	}

	if _, err := n.StopContainer(t.Context(), &cri.StopContainerRequest{ContainerId: id, Timeout: 10}); err != nil {
		t.Fatal(err)
	}
	got = n.status(t, id)
	if got.State != cri.ContainerState_CONTAINER_EXITED || got.ExitCode != 128+3 || got.FinishedAt < got.StartedAt || got.Reason != "Error" {
		t.Errorf("after stop with the image's signal: %v", got)
	}

	if _, err := n.StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: sb}); err != nil {
		t.Fatal(err)
	}
	resp, err = n.PodSandboxStatus(t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: sb})
	if err != nil {
		t.Fatal(err)
	}
	if resp.Status.State != cri.PodSandboxState_SANDBOX_NOTREADY || resp.Status.Network.Ip != "" || len(resp.Status.Network.AdditionalIps) > 0 {
		t.Errorf("stopped sandbox: %v", resp.Status)
	}
	if ids := n.listed(t); !slices.Equal(ids, []string{sb, id}) {
		t.Errorf("listed %v, want the stopped ones too", ids)
	}
	if _, err := n.RemovePodSandbox(t.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: sb}); err != nil {
		t.Fatal(err)
	}
	n.wantNothingLeft(t)
}

// What the kubelet passes to a pod's network, and the files that the pod gets.
func TestNetworkAndFilesOfAPod(t *testing.T) {
	n := newNode(t)
	sb := n.run(t, pod("web"))
	p := n.net.pod(sb)
	if p.Name != "web" || p.Namespace != "default" || p.UID != "uid-web" || p.NetNS == "" || p.EgressBPS != 10_000_000 || p.IngressBPS != 0 {
		t.Errorf("network was given %+v", p)
	}
	if len(p.Ports) != 1 || p.Ports[0].Protocol != "udp" || p.Ports[0].HostPort != 5353 || p.Ports[0].ContainerPort != 53 || p.Ports[0].HostIP != "127.0.0.1" {
		t.Errorf("ports are %+v", p.Ports)
	}
	dir := filepath.Join(n.machine.Root, "sandboxes", sb)
	for name, want := range map[string]string{
		"resolv.conf": "search svc local\nnameserver 10.0.0.10\noptions ndots:5\n",
		"hostname":    "web\n",
	} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s is %q, %v; want %q", name, got, err, want)
		}
	}

	// Without a DNS config the pod gets the node's file, with an empty one nothing.
	node, err := remoteResolvConf("/etc/resolv.conf", "/run/systemd/resolve/resolv.conf")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		dns  *cri.DNSConfig
		want string
	}{"none": {nil, string(node)}, "empty": {&cri.DNSConfig{}, ""}} {
		config := pod(name)
		config.DnsConfig = c.dns
		sb := n.run(t, config)
		if got, err := os.ReadFile(filepath.Join(n.machine.Root, "sandboxes", sb, "resolv.conf")); err != nil || string(got) != c.want {
			t.Errorf("%s: resolv.conf is %q, %v; want %q", name, got, err, c.want)
		}
	}
}

func TestHostNetworkIsNotAttached(t *testing.T) {
	n := newNode(t)
	config := pod("host")
	config.Linux.SecurityContext.NamespaceOptions.Network = cri.NamespaceMode_NODE
	sb := n.run(t, config)
	if got := n.net.attached(); len(got) > 0 {
		t.Errorf("attached %v", got)
	}
	resp, err := n.PodSandboxStatus(t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: sb})
	if err != nil {
		t.Fatal(err)
	}
	if resp.Status.Network.Ip != "" || resp.Status.Linux.Namespaces.Options.Network != cri.NamespaceMode_NODE {
		t.Errorf("status is %v", resp.Status)
	}
}

// CRI: removing a sandbox removes everything in it, running or not.
func TestRemoveSandboxThatRuns(t *testing.T) {
	n := newNode(t)
	sb := n.run(t, pod("web"))
	n.begin(t, sb, forever("a"))
	n.create(t, sb, forever("b"))
	if _, err := n.RemovePodSandbox(t.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: sb}); err != nil {
		t.Fatal(err)
	}
	n.wantNothingLeft(t)
}

func TestRemoveContainerThatRuns(t *testing.T) {
	n := newNode(t)
	sb := n.run(t, pod("web"))
	id := n.begin(t, sb, forever("a"))
	if _, err := n.RemoveContainer(t.Context(), &cri.RemoveContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	if n.machine.Alive(id) != 0 || len(n.store.Mounts()) != 0 {
		t.Errorf("%d processes, mounts %v", n.machine.Alive(id), n.store.Mounts())
	}
}

// All properties of a pod survive a restart of crispd: the kubelet would recreate a pod whose
// address or namespace options changed.
func TestStatusesSurviveRestart(t *testing.T) {
	n := newNode(t)
	sb := n.run(t, pod("web"))
	c := forever("server")
	c.Mounts = []*cri.Mount{{ContainerPath: "/data", HostPath: t.TempDir()}}
	id := n.begin(t, sb, c)
	before, err := n.PodSandboxStatus(t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: sb})
	if err != nil {
		t.Fatal(err)
	}
	n.restart(t)
	after, err := n.PodSandboxStatus(t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: sb})
	if err != nil {
		t.Fatal(err)
	}
	before.Timestamp, after.Timestamp = 0, 0
	if diff := cmp.Diff(before, after, protocmp.Transform()); diff != "" {
		t.Errorf("status after restart (-before +after):\n%s", diff)
	}
	// Names survive too: the same request returns the same object.
	if again := n.run(t, pod("web")); again != sb {
		t.Errorf("a repetition made sandbox %s, want %s", again, sb)
	}
	if again := n.create(t, sb, c); again != id {
		t.Errorf("a repetition made container %s, want %s", again, id)
	}
	if got := n.net.attached(); !slices.Equal(got, []string{sb}) {
		t.Errorf("attached %v, want %s still", got, sb)
	}
}

// A crash leaves objects without an owner.
func TestStartReleasesLeftovers(t *testing.T) {
	n := newNode(t)
	sb := n.run(t, pod("web"))
	id := n.create(t, sb, forever("a"))
	n.stop()
	if _, err := n.store.Mount(t.Context(), "0123", testID, rootfs.MountOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.store.Mount(t.Context(), "0123-1", testID, rootfs.MountOptions{}); err != nil {
		t.Fatal(err)
	}
	p := n.net.pod(sb)
	p.ID = "4567"
	if _, err := n.net.Attach(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	n.start(t)
	if got := n.store.Mounts(); !slices.Equal(got, []string{id}) {
		t.Errorf("mounts are %v, want only the container's", got)
	}
	if got := n.net.attached(); !slices.Equal(got, []string{sb}) {
		t.Errorf("attached are %v, want only the sandbox", got)
	}
}

// The next crispd completes a stop that a crash interrupted.
func TestStartFinishesStop(t *testing.T) {
	n := newNode(t)
	sb := n.run(t, pod("web"))
	id := n.begin(t, sb, forever("a"))
	object, err := n.runtime.Sandbox(sb)
	if err != nil {
		t.Fatal(err)
	}
	if err := object.BeginStop(); err != nil {
		t.Fatal(err)
	}
	n.restart(t)
	n.server.work.wait()
	resp, err := n.PodSandboxStatus(t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: sb})
	if err != nil {
		t.Fatal(err)
	}
	if resp.Status.State != cri.PodSandboxState_SANDBOX_NOTREADY || len(n.net.attached()) != 0 || n.machine.Alive(id) != 0 {
		t.Errorf("status %v, attached %v, %d processes", resp.Status, n.net.attached(), n.machine.Alive(id))
	}
	if _, err := n.RemovePodSandbox(t.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: sb}); err != nil {
		t.Fatal(err)
	}
	n.wantNothingLeft(t)
}

// After a reboot a sandbox has lost its namespaces, but still has an address, which must be
// released.
func TestStartReleasesAddressesAfterReboot(t *testing.T) {
	n := newNode(t)
	sb := n.run(t, pod("web"))
	id := n.begin(t, sb, forever("a"))
	n.stop()
	n.machine.Reboot()
	n.rebooted = true
	n.start(t)
	n.server.work.wait()
	resp, err := n.PodSandboxStatus(t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: sb})
	if err != nil {
		t.Fatal(err)
	}
	if resp.Status.State != cri.PodSandboxState_SANDBOX_NOTREADY || resp.Status.Network.Ip != "" || len(n.net.attached()) > 0 {
		t.Errorf("status %v, attached %v", resp.Status, n.net.attached())
	}
	if st := n.status(t, id); st.State != cri.ContainerState_CONTAINER_EXITED || st.ExitCode != 255 {
		t.Errorf("container: %v", st)
	}
	if _, err := n.RemovePodSandbox(t.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: sb}); err != nil {
		t.Fatal(err)
	}
	n.wantNothingLeft(t)
}

// A container whose sandbox's record was lost stays: the kubelet reads how it ended, and its
// garbage collection, which goes by labels, removes it.
func TestContainerOfALostSandbox(t *testing.T) {
	for _, rebooted := range []bool{false, true} {
		t.Run(fmt.Sprintf("rebooted=%v", rebooted), func(t *testing.T) {
			n := newNode(t)
			sb := n.run(t, pod("web"))
			id := n.begin(t, sb, forever("a"))
			n.stop()
			if err := os.RemoveAll(filepath.Join(n.machine.Root, "sandboxes", sb)); err != nil {
				t.Fatal(err)
			}
			if n.rebooted = rebooted; rebooted {
				n.machine.Reboot()
			}
			n.start(t)
			n.server.work.wait()
			if got := n.listed(t); !slices.Equal(got, []string{id}) {
				t.Errorf("listed are %v, want only %s", got, id)
			}
			if _, err := n.StopContainer(t.Context(), &cri.StopContainerRequest{ContainerId: id}); err != nil {
				t.Error(err)
			}
			if st := n.status(t, id); st.State != cri.ContainerState_CONTAINER_EXITED || st.ExitCode == 0 {
				t.Errorf("status %v", st)
			}
			if _, err := n.RemoveContainer(t.Context(), &cri.RemoveContainerRequest{ContainerId: id}); err != nil {
				t.Error(err)
			}
			n.wantNothingLeft(t)
		})
	}
}

// A pod that is deleted while its container starts is everyday traffic, not a fault that an
// administrator has to look at.
func TestDeletedDuringAStart(t *testing.T) {
	n := newNode(t)
	n.machine.SlowRun(time.Hour)
	sb := n.run(t, pod("web"))
	id := n.create(t, sb, forever("app"))
	c, err := n.runtime.Container(id)
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan error, 1)
	go func() {
		_, err := n.StartContainer(t.Context(), &cri.StartContainerRequest{ContainerId: id})
		started <- err
	}()
	for c.Status().State != oci.Starting {
		time.Sleep(time.Millisecond)
	}
	if _, err := n.StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: sb}); err != nil {
		t.Error(err)
	}
	err = <-started
	wantCode(t, "the start", err, "FailedPrecondition")
	if level := failureLevel(codeOf(t.Context(), err), err); level != slog.LevelInfo {
		t.Errorf("it is logged with level %v", level)
	}
	if _, err := n.RemovePodSandbox(t.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: sb}); err != nil {
		t.Error(err)
	}
	n.wantNothingLeft(t)
}
