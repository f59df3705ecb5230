package server

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci"
)

// The most frequent complaint about other runtimes: the kubelet gives up while CNI hangs, retries,
// and from then on gets the error that the name is reserved.
func TestRunSandboxIsJoinedWhileTheNetworkHangs(t *testing.T) {
	n := newNode(t)
	waiting, release := n.net.block()
	defer release()
	impatient, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := n.RunPodSandbox(impatient, &cri.RunPodSandboxRequest{Config: pod("web")})
		gone <- err
	}()
	<-waiting
	if ids := n.listed(t); len(ids) > 0 {
		t.Errorf("listed %v while it is being made", ids)
	}
	// Another handler under that name is not a repetition.
	other := pod("web")
	other.Labels["app"] = "other"
	_, err := n.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: pod("web"), RuntimeHandler: "crisp"})
	wantCode(t, "another handler", err, "AlreadyExists")
	cancel()
	wantCode(t, "the impatient client", <-gone, "Canceled")

	// Plugins add annotations to the pod during ADD, and the kubelet's next request has them.
	next := pod("web")
	next.Annotations = map[string]string{"k8s.v1.cni.cncf.io/network-status": "[]", "kubernetes.io/config.seen": "later"}
	second := make(chan string, 1)
	go func() { second <- n.run(t, next) }()
	release()
	id := <-second
	if n.net.adds != 1 || !slices.Equal(n.listed(t), []string{id}) {
		t.Errorf("%d networks attached, listed %v, got %s", n.net.adds, n.listed(t), id)
	}
	if again := n.run(t, pod("web")); again != id { // without those annotations
		t.Errorf("a repetition after the answer got %s, want %s", again, id)
	}
	_, err = n.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: other})
	wantCode(t, "another configuration after the answer", err, "AlreadyExists")
}

// A sandbox that was finished after its client had gone is not listed: the kubelet would take it
// for an old attempt and never request it.
func TestUncollectedSandboxIsHidden(t *testing.T) {
	n := newNode(t)
	waiting, release := n.net.block()
	impatient, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		// Called directly: the server must know that the client has gone before the work is done.
		_, err := n.server.RunPodSandbox(impatient, &cri.RunPodSandboxRequest{Config: pod("web")})
		gone <- err
	}()
	<-waiting
	cancel()
	<-gone
	release()
	n.server.work.wait() // it is finished now
	if len(n.net.attached()) != 1 {
		t.Fatal("the sandbox was not finished")
	}
	id := n.net.attached()[0]
	if ids := n.listed(t); len(ids) > 0 {
		t.Errorf("listed %v, want nothing", ids)
	}
	_, err := n.PodSandboxStatus(t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: id})
	wantCode(t, "status of an uncollected sandbox", err, "NotFound")
	if got := n.run(t, pod("web")); got != id || n.net.adds != 1 {
		t.Errorf("the repetition got %s after %d networks, want %s", got, n.net.adds, id)
	}
	if ids := n.listed(t); !slices.Equal(ids, []string{id}) {
		t.Errorf("listed %v, want the collected one", ids)
	}
}

// A container's creation is joined the same way, here while its image is mounted.
func TestCreateContainerTwice(t *testing.T) {
	n := newNode(t)
	sb := n.run(t, pod("web"))
	id := n.create(t, sb, forever("a"))
	if again := n.create(t, sb, forever("a")); again != id {
		t.Errorf("a repetition made %s, want %s", again, id)
	}
	other := container("a", "exit", "0")
	_, err := n.CreateContainer(t.Context(), &cri.CreateContainerRequest{PodSandboxId: sb, Config: other})
	wantCode(t, "another configuration", err, "AlreadyExists")
	next := forever("a")
	next.Metadata.Attempt = 1
	if got := n.create(t, sb, next); got == id {
		t.Error("another attempt got the same container")
	}
	if len(n.listed(t)) != 3 {
		t.Errorf("listed %v", n.listed(t))
	}
}

// A kubelet's two requests for the same container are never equal: the environment comes from a
// map, and the file of the termination message has a new name each time. The second request still
// gets the container, as the first requested it.
func TestKubeletsSecondRequestGetsItsContainer(t *testing.T) {
	for what, finished := range map[string]bool{"while it is being made": false, "finished and not collected": true} {
		t.Run(what, func(t *testing.T) {
			n := newNode(t)
			sandbox, elsewhere := n.run(t, pod("web")), n.run(t, pod("other"))
			request := func(file string, envs ...string) *cri.CreateContainerRequest {
				c := forever("app")
				c.Annotations["io.kubernetes.container.terminationMessagePath"] = "/dev/termination-log"
				for _, e := range envs {
					c.Envs = append(c.Envs, &cri.KeyValue{Key: e, Value: []byte("value")})
				}
				c.Mounts = []*cri.Mount{{ContainerPath: "/dev/termination-log", HostPath: filepath.Join(t.TempDir(), file)}}
				return &cri.CreateContainerRequest{PodSandboxId: sandbox, Config: c}
			}
			first, second := request("1a2b", "A", "B"), request("3c4d", "B", "A")
			waiting, release := n.store.block()
			defer release()
			impatient, cancel := context.WithCancel(t.Context())
			gone := make(chan error, 1)
			go func() {
				_, err := n.server.CreateContainer(impatient, first) // called directly: see above
				gone <- err
			}()
			<-waiting
			cancel()
			<-gone
			if finished {
				release()
				n.server.work.wait()
			}
			id := make(chan string, 1)
			go func() {
				resp, err := n.CreateContainer(t.Context(), second)
				if err != nil {
					t.Error(err)
				}
				id <- resp.GetContainerId()
			}()
			release()
			got := <-id
			if n := len(n.listed(t)); n != 3 {
				t.Errorf("%d sandboxes and containers, want 3", n)
			}
			if st := n.status(t, got); len(st.Mounts) != 1 || st.Mounts[0].HostPath != first.Config.Mounts[0].HostPath {
				t.Errorf("its mounts are %v, want the file of the first request: there the message is written", st.Mounts)
			}
			// One whose answer was lost is repeated as well. Another configuration means another container.
			if again, err := n.CreateContainer(t.Context(), request("7f8a", "A", "B")); err != nil || again.ContainerId != got {
				t.Errorf("a repetition after the answer: %v, %v", again, err)
			}
			_, err := n.CreateContainer(t.Context(), request("5e6f", "C"))
			wantCode(t, "another configuration after the answer", err, "AlreadyExists")
			n.create(t, elsewhere, forever("app"))
		})
	}
}

// The leftovers of a sandbox that could neither be made nor be undone are listed, so
// their removal is an event like any other.
func TestRemovalOfWhatNeverWasReadyIsReported(t *testing.T) {
	n := newNode(t)
	n.net.failing("Attach", fault.Unavailable.Errorf("broken for the test"))
	n.net.failing("Detach", fault.Unavailable.Errorf("broken for the test"))
	if _, err := n.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: pod("web")}); err == nil {
		t.Fatal("it was run without a network")
	}
	n.net.failing("Attach", nil)
	n.net.failing("Detach", nil)
	left := n.listed(t)
	if len(left) != 1 {
		t.Fatalf("listed %v, want what could not be undone", left)
	}
	events, err := n.GetContainerEvents(t.Context(), &cri.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for !n.server.events.hub.HasSubscribers() { // the subscription has no answer to wait for
	}
	if _, err := n.RemovePodSandbox(t.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: left[0]}); err != nil {
		t.Fatal(err)
	}
	n.run(t, pod("other")) // its events end the wait
	ev, err := events.Recv()
	if err == nil && ev.ContainerEventType == cri.ContainerEventType_CONTAINER_STOPPED_EVENT {
		ev, err = events.Recv() // what its roll-back did not reach
	}
	if err != nil || ev.ContainerId != left[0] || ev.ContainerEventType != cri.ContainerEventType_CONTAINER_DELETED_EVENT {
		t.Errorf("the event is %v of %s, %v; want the removal of %s", ev.GetContainerEventType(), ev.GetContainerId(), err, left[0])
	}
	if _, ok := n.server.index.sandboxes.Load(left[0]); ok {
		t.Error("its record is kept in memory")
	}
}

// Each step of RunPodSandbox fails once. Nothing may be left of it, and the same request must then
// succeed.
func TestRunSandboxRollsBack(t *testing.T) {
	broken := fault.Unavailable.Errorf("broken for the test")
	steps := map[string]struct{ fail, mend func(n *node) }{
		"network": {
			func(n *node) { n.net.failing("Attach", broken) },
			func(n *node) { n.net.failing("Attach", nil) }},
		"namespaces": {
			func(n *node) { n.machine.FailHost("pin", broken) },
			func(n *node) { n.machine.FailHost("pin", nil) }},
	}
	for name, step := range steps {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			step.fail(n)
			_, err := n.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: pod("web")})
			wantCode(t, "run", err, "Unavailable")
			step.mend(n)
			n.wantNothingLeft(t)
			n.run(t, pod("web"))
		})
	}
}

// A host port in use is not AlreadyExists: the kubelet would not know which of the two objects is
// meant.
func TestRunSandboxOnATakenPort(t *testing.T) {
	n := newNode(t)
	n.net.failing("Attach", fault.Exists.Errorf("port 80 is taken"))
	_, err := n.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: pod("web")})
	wantCode(t, "run", err, "Unavailable")
	n.wantNothingLeft(t)
}

// If the roll-back fails too, the sandbox must be listed: the kubelet stops and removes sandboxes
// that are not ready, which releases the address.
func TestFailedRollBackIsListed(t *testing.T) {
	n := newNode(t)
	n.machine.FailHost("pin", nil)
	n.net.failing("Attach", fault.Unavailable.Errorf("no address left"))
	n.net.failing("Detach", fault.Unavailable.Errorf("plugin is broken"))
	_, err := n.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: pod("web")})
	wantCode(t, "run", err, "Unavailable")
	list, err := n.ListPodSandbox(t.Context(), &cri.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 1 || list.Items[0].State != cri.PodSandboxState_SANDBOX_NOTREADY {
		t.Fatalf("listed %v, want one that is not ready", list.Items)
	}
	sb := list.Items[0].Id
	_, err = n.StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: sb})
	wantCode(t, "stop while the plugin is broken", err, "Unavailable")
	n.net.failing("Attach", nil)
	n.net.failing("Detach", nil)
	if _, err := n.StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: sb}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.RemovePodSandbox(t.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: sb}); err != nil {
		t.Fatal(err)
	}
	n.wantNothingLeft(t)
	n.run(t, pod("web"))
}

// Each step of CreateContainer fails once; see TestRunSandboxRollsBack.
func TestCreateContainerRollsBack(t *testing.T) {
	broken := fault.Unavailable.Errorf("broken for the test")
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	steps := map[string]struct {
		code string
		fail func(n *node, c *cri.ContainerConfig)
	}{
		"image is not there": {"NotFound", func(_ *node, c *cri.ContainerConfig) { c.Image.Image = "nowhere:1" }},
		"no root file system": {"Unavailable", func(n *node, _ *cri.ContainerConfig) {
			n.store.failing("Mount", broken)
		}},
		"user is not there": {"InvalidArgument", func(_ *node, c *cri.ContainerConfig) {
			c.Linux.SecurityContext.RunAsUsername = "nobody-knows"
		}},
		"group without user": {"InvalidArgument", func(_ *node, c *cri.ContainerConfig) {
			c.Linux.SecurityContext.RunAsGroup = &cri.Int64Value{Value: 7}
		}},
		"mount source cannot be made": {"InvalidArgument", func(_ *node, c *cri.ContainerConfig) {
			c.Mounts = []*cri.Mount{{ContainerPath: "/data", HostPath: filepath.Join(file, "below")}}
		}},
		"mount source must be there": {"InvalidArgument", func(_ *node, c *cri.ContainerConfig) {
			c.Mounts = []*cri.Mount{{ContainerPath: "/data", HostPath: "/must/be/there"}}
		}},
		"recursive read-only without read-only": {"InvalidArgument", func(_ *node, c *cri.ContainerConfig) {
			c.Mounts = []*cri.Mount{{ContainerPath: "/data", HostPath: "/tmp", RecursiveReadOnly: true}}
		}},
		"image volume fails": {"Unavailable", func(n *node, c *cri.ContainerConfig) {
			c.Mounts = []*cri.Mount{{ContainerPath: "/a", Image: &cri.ImageSpec{Image: testID}, Readonly: true},
				{ContainerPath: "/b", Image: &cri.ImageSpec{Image: testID}, Readonly: true}}
			n.store.failing("MountReadOnly", broken)
		}},
		"image volume is writable": {"InvalidArgument", func(_ *node, c *cri.ContainerConfig) {
			c.Mounts = []*cri.Mount{{ContainerPath: "/a", Image: &cri.ImageSpec{Image: testID}}}
		}},
		"sub path leads nowhere": {"InvalidArgument", func(_ *node, c *cri.ContainerConfig) {
			c.Mounts = []*cri.Mount{{ContainerPath: "/a", Image: &cri.ImageSpec{Image: testID}, Readonly: true, ImageSubPath: "no/such"}}
		}},
		"sub path is absolute": {"InvalidArgument", func(_ *node, c *cri.ContainerConfig) {
			c.Mounts = []*cri.Mount{{ContainerPath: "/a", Image: &cri.ImageSpec{Image: testID}, Readonly: true, ImageSubPath: "/"}}
		}},
		"sub path leads out": {"InvalidArgument", func(_ *node, c *cri.ContainerConfig) {
			c.Mounts = []*cri.Mount{{ContainerPath: "/a", Image: &cri.ImageSpec{Image: testID}, Readonly: true, ImageSubPath: "../."}}
		}},
		"device is not there": {"InvalidArgument", func(_ *node, c *cri.ContainerConfig) {
			c.Devices = []*cri.Device{{HostPath: "/dev/no-such-device", Permissions: "r"}}
		}},
		"device is a file": {"InvalidArgument", func(_ *node, c *cri.ContainerConfig) {
			c.Devices = []*cri.Device{{HostPath: file, Permissions: "r"}}
		}},
		"CDI device": {"InvalidArgument", func(_ *node, c *cri.ContainerConfig) {
			c.CDIDevices = []*cri.CDIDevice{{Name: "vendor.com/gpu=0"}}
		}},
		"seccomp profile is not there": {"InvalidArgument", func(_ *node, c *cri.ContainerConfig) {
			c.Linux.SecurityContext.Seccomp = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost, LocalhostRef: "/no/such/profile"}
		}},
		"AppArmor profile without AppArmor": {"InvalidArgument", func(_ *node, c *cri.ContainerConfig) {
			c.Linux.SecurityContext.Apparmor = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost, LocalhostRef: "mine"}
		}},
		"privileged in a sandbox that is not": {"InvalidArgument", func(_ *node, c *cri.ContainerConfig) {
			c.Linux.SecurityContext.Privileged = true
		}},
		"target is not there": {"InvalidArgument", func(_ *node, c *cri.ContainerConfig) {
			c.Linux.SecurityContext.NamespaceOptions = &cri.NamespaceOption{Pid: cri.NamespaceMode_TARGET, TargetId: "feed"}
		}},
		"shared PID namespace that is none": {"InvalidArgument", func(_ *node, c *cri.ContainerConfig) {
			c.Linux.SecurityContext.NamespaceOptions = &cri.NamespaceOption{Pid: cri.NamespaceMode_POD}
		}},
		"user namespace": {"InvalidArgument", func(_ *node, c *cri.ContainerConfig) {
			c.Linux.SecurityContext.NamespaceOptions.UsernsOptions = &cri.UserNamespace{Uids: []*cri.IDMapping{{Length: 1}}}
		}},
		"unknown stop signal":            {"InvalidArgument", func(_ *node, c *cri.ContainerConfig) { c.StopSignal = 99 }},
		"log leads out of its directory": {"InvalidArgument", func(_ *node, c *cri.ContainerConfig) { c.LogPath = "../x.log" }},
		"log directory cannot be made":   {"InvalidArgument", func(_ *node, c *cri.ContainerConfig) { c.LogPath = "file/x.log" }},
	}
	for name, step := range steps {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			config := pod("web")
			config.LogDirectory = filepath.Join(filepath.Dir(file), "logs")
			sb := n.run(t, config)
			if err := os.WriteFile(filepath.Join(config.LogDirectory, "file"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			before := n.left()
			bad := forever("a")
			step.fail(n, bad)
			_, err := n.CreateContainer(t.Context(), &cri.CreateContainerRequest{PodSandboxId: sb, Config: bad})
			wantCode(t, "create", err, step.code)
			if after := n.left(); !slices.Equal(before, after) {
				t.Errorf("before %v\nafter %v", before, after)
			}
			n.store.failing("Mount", nil)
			n.begin(t, sb, forever("a"))
		})
	}
}

// A stopping sandbox accepts no new container, and once it is stopped no container in it can be
// started.
func TestNothingNewInAStoppedSandbox(t *testing.T) {
	n := newNode(t)
	sb := n.run(t, pod("web"))
	id := n.create(t, sb, forever("a"))
	if _, err := n.StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: sb}); err != nil {
		t.Fatal(err)
	}
	_, err := n.CreateContainer(t.Context(), &cri.CreateContainerRequest{PodSandboxId: sb, Config: forever("b")})
	wantCode(t, "create", err, "FailedPrecondition")
	_, err = n.StartContainer(t.Context(), &cri.StartContainerRequest{ContainerId: id})
	wantCode(t, "start", err, "FailedPrecondition")
	_, err = n.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: pod("web")})
	wantCode(t, "run under the name of a stopped sandbox", err, "AlreadyExists")
}

// The kubelet's stop may time out; the kill still follows.
func TestStopGoesOnWithoutItsCaller(t *testing.T) {
	t.Parallel() // it waits for a grace period of three seconds
	n := newNode(t)
	sb := n.run(t, pod("web"))
	config := container("stubborn", "ignore-term", "sleep", "for-ever")
	config.StopSignal = cri.Signal_SIGNAL_SIGTERM
	id := n.begin(t, sb, config)
	c, err := n.runtime.Container(id)
	if err != nil {
		t.Fatal(err)
	}
	impatient, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for c.Status().State == oci.Running && impatient.Err() == nil { // the stop has not arrived
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	_, err = n.StopContainer(impatient, &cri.StopContainerRequest{ContainerId: id, Timeout: 3})
	wantCode(t, "impatient stop", err, "Canceled")
	<-c.Done()
}
