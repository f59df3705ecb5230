package test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/agent/event"
)

// How containers end, by themselves and by the agent, and what is left of them.
func TestAgentEnds(t *testing.T) {
	n, _ := startNode(t)
	links := filepath.Join(n.dir, "links")
	l := labOn(t, n, "--log-links", links)
	podsEndBadly(t, l)
	podsAreAskedInVain(t, l)
	podsSayGoodbye(t, l)
	podsBeginAgain(t, l)
	podsLeaveNothing(t, l, links)
	podsEndBesideLists(t, l)
	runtimeRefuses(t, l)
}

// podsEndBadly: what runs out of memory, and what does not listen to SIGTERM, is
// killed and shown so.
func podsEndBadly(t *testing.T, l *lab) {
	l.run(t, "hog", `
  containers: [{name: app, image: IMAGE, args: [eat, "64", sleep, for-ever], resources: {limits: {memory: 24Mi}}}]
`, func(t *testing.T, l *lab) {
		l.awaitRestarts("app", 1)
		if s := l.status("app").LastTerminationState.Terminated; s == nil || s.Reason != "OOMKilled" || s.ExitCode != 137 {
			t.Errorf("it ended as %+v", s)
		}
	})
	l.run(t, "deaf", `
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: IMAGE
    args: [ignore-term, write, /d/deaf, "", sleep, for-ever]
    livenessProbe: {exec: {command: [/testbin, await, /d/deaf, exit, "1"]}, timeoutSeconds: 60, periodSeconds: 1, failureThreshold: 1}
    volumeMounts: [{name: d, mountPath: /d}]
  volumes: [{name: d, hostPath: {path: DIR}}]
`, func(t *testing.T, l *lab) {
		l.until(func() bool { return l.status("app").State.Terminated != nil }, "it has ended")
		if s := l.status("app").State.Terminated; s.ExitCode != 137 {
			t.Errorf("it ended as %+v", s)
		}
	})
}

// podsAreAskedInVain: a probe that takes too long has failed, and as many in a row
// as the threshold, no fewer, cost a restart.
func podsAreAskedInVain(t *testing.T, l *lab) {
	l.run(t, "slow", `
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: IMAGE
    args: [sleep, for-ever]
    livenessProbe: {exec: {command: [/testbin, sleep, 5s]}, timeoutSeconds: 1, periodSeconds: 1, failureThreshold: 3}
`, func(t *testing.T, l *lab) {
		l.awaitEvent("Killing: Container app failed liveness probe, will be restarted")
		all, err := event.Read(filepath.Join(l.n.dir, "agent", "events"))
		if err != nil {
			t.Fatal(err)
		}
		failed := int32(0)
		for _, e := range all {
			if e.InvolvedObject.Name == "slow" && e.Reason == "Unhealthy" && strings.Contains(e.Message, "timed out") {
				failed += e.Count
			}
		}
		if failed < 3 {
			t.Errorf("killed after %d probes that timed out: %q", failed, l.events())
		}
		l.awaitRestarts("app", 1)
	})
}

// podsSayGoodbye: the hook before the end is a request that somebody gets.
func podsSayGoodbye(t *testing.T, l *lab) {
	var mu sync.Mutex
	var heard []string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		heard = append(heard, r.Method+" "+r.URL.String())
	}))
	defer server.Close()
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	l.run(t, "polite", fmt.Sprintf(`
  terminationGracePeriodSeconds: 10
  containers:
  - {name: app, image: IMAGE, args: [catch, sleep, for-ever], lifecycle: {preStop: {httpGet: {host: %s, port: %s, path: "/bye?now"}}}}
`, u.Hostname(), u.Port()), func(t *testing.T, l *lab) {
		l.awaitReady()
		mu.Lock()
		if len(heard) > 0 {
			t.Errorf("too early: %q", heard)
		}
		mu.Unlock()
		l.remove()
		l.until(func() bool { return l.pod() == nil }, "the pod is gone")
		mu.Lock()
		defer mu.Unlock()
		if !slices.Equal(heard, []string{"GET /bye?now"}) {
			t.Errorf("heard %q", heard)
		}
	})
}

// podsBeginAgain: a sandbox that is lost costs a new one in which everything
// begins from the start, and nothing stale stays beside it.
func podsBeginAgain(t *testing.T, l *lab) {
	l.run(t, "again", `
  terminationGracePeriodSeconds: 1
  initContainers: [{name: init, image: IMAGE, args: [print, hello]}]
  containers: [{name: app, image: IMAGE, args: [sleep, for-ever]}]
`, func(t *testing.T, l *lab) {
		l.awaitReady()
		if _, err := l.n.runtime().StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: l.sandboxes()[0].Id}); err != nil {
			t.Fatal(err)
		}
		l.awaitRestarts("app", 1)
		l.awaitReady()
		sandboxes := l.sandboxes()
		i := slices.IndexFunc(sandboxes, func(sb *cri.PodSandbox) bool { return sb.State == cri.PodSandboxState_SANDBOX_READY })
		if i < 0 || sandboxes[i].Metadata.Attempt != 1 {
			t.Fatalf("sandboxes %v", sandboxes)
		}
		init := l.containers("init")
		if len(init) != 1 || init[0].PodSandboxId != sandboxes[i].Id || init[0].State != cri.ContainerState_CONTAINER_EXITED {
			t.Errorf("init containers %v, want one that ran in the new sandbox", init)
		}
	})
}

// podsLeaveNothing: log shippers find a container's log, and nothing of it when
// its pod was deleted; neither do others.
func podsLeaveNothing(t *testing.T, l *lab, links string) {
	dir := ""
	l.run(t, "shipped", `
  terminationGracePeriodSeconds: 1
  containers: [{name: app, image: IMAGE, args: [print, hello, sleep, for-ever]}]
`, func(t *testing.T, l *lab) {
		l.awaitReady()
		dir = filepath.Join(l.n.dir, "agent", "logs", "default_shipped_"+string(l.pod().UID))
		_, id, _ := strings.Cut(l.status("app").ContainerID, "://")
		link := filepath.Join(links, "shipped_default_app-"+id+".log")
		l.until(func() bool {
			data, err := os.ReadFile(link)
			return err == nil && strings.HasSuffix(string(data), " hello\n")
		}, "the log is found by its link")
		if target, err := os.Readlink(link); err != nil || target != filepath.Join(dir, "app", "0.log") {
			t.Errorf("the link leads to %s, %v", target, err)
		}
	})
	l.until(func() bool { return len(l.sandboxesOf("shipped")) == 0 }, "its sandbox is gone")
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("its logs are left: %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(links, "shipped_*")); err != nil || len(left) > 0 {
		t.Errorf("links %v, %v", left, err)
	}
}

// podsEndBesideLists: while containers are being stopped, and take their time, the
// runtime answers everybody else.
func podsEndBesideLists(t *testing.T, l *lab) {
	const many = 20
	spec := "\n  terminationGracePeriodSeconds: 600\n  containers:\n"
	for i := range many {
		spec += fmt.Sprintf("  - {name: c%d, image: IMAGE, args: [ignore-term, sleep, for-ever]}\n", i)
	}
	l.run(t, "crowd", spec, func(t *testing.T, l *lab) {
		l.awaitReady()
		l.remove()
		l.awaitEvent("Killing: Stopping container c0")
		for range 5 {
			running := 0
			for _, c := range l.containers("") {
				if c.State == cri.ContainerState_CONTAINER_RUNNING {
					running++
				}
			}
			if running != many {
				t.Fatalf("%d of %d containers run: the list came when their stop was over", running, many)
			}
			id := l.containers("c0")[0].Id
			resp, err := l.n.runtime().ContainerStatus(t.Context(), &cri.ContainerStatusRequest{ContainerId: id})
			if err != nil || resp.Status.State != cri.ContainerState_CONTAINER_RUNNING {
				t.Fatalf("status while it is being stopped: %v, %v", resp, err)
			}
		}
		for _, c := range l.containers("") { // nobody waits for their grace
			if _, err := l.n.runtime().StopContainer(t.Context(), &cri.StopContainerRequest{ContainerId: c.Id}); err != nil {
				t.Error(err)
			}
		}
	})
}

// runtimeRefuses: what crispd does not have it says, and exit codes are never
// another's.
func runtimeRefuses(t *testing.T, l *lab) {
	t.Run("refusals", func(t *testing.T) {
		_, err := l.n.runtime().RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{RuntimeHandler: "nobody", Config: &cri.PodSandboxConfig{
			Metadata: &cri.PodSandboxMetadata{Name: "p", Namespace: "default", Uid: "u"}, Linux: &cri.LinuxPodSandboxConfig{},
		}})
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("an unknown handler: %v", err)
		}
		if err := l.n.conn.Invoke(t.Context(), "/runtime.v1.RuntimeService/NoSuchCall", &cri.VersionRequest{}, &cri.VersionResponse{}); status.Code(err) != codes.Unimplemented {
			t.Errorf("an unknown call: %v", err)
		}
	})
	l.run(t, "codes", `
  terminationGracePeriodSeconds: 1
  containers: [{name: app, image: IMAGE, args: [sleep, for-ever]}]
`, func(t *testing.T, l *lab) {
		l.awaitReady()
		_, id, _ := strings.Cut(l.status("app").ContainerID, "://")
		runtime := l.n.runtime()
		config := &cri.PodSandboxConfig{
			Metadata: &cri.PodSandboxMetadata{Name: "brief", Namespace: "default", Uid: "brief"},
			Linux:    &cri.LinuxPodSandboxConfig{SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: &cri.NamespaceOption{Network: cri.NamespaceMode_NODE}}},
		}
		sandbox, err := runtime.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: config})
		if err != nil {
			t.Fatal(err)
		}
		const workers, each = 8, 125
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() {
				for i := range each {
					want := int32((w*each + i) % 256)
					var got int32
					var err error
					if i%25 == 0 {
						got, err = brief(t, runtime, sandbox.PodSandboxId, config, fmt.Sprint("c", w, "-", i), want)
					} else {
						var resp *cri.ExecSyncResponse
						resp, err = runtime.ExecSync(t.Context(), &cri.ExecSyncRequest{ContainerId: id, Cmd: []string{"/testbin", "exit", fmt.Sprint(want)}})
						got = resp.GetExitCode()
					}
					if err != nil || got != want {
						t.Errorf("%d of worker %d ended with %d, want %d: %v", i, w, got, want, err)
						return
					}
				}
			})
		}
		wg.Wait()
		if _, err := runtime.StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: sandbox.PodSandboxId}); err != nil {
			t.Error(err)
		}
		if _, err := runtime.RemovePodSandbox(t.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: sandbox.PodSandboxId}); err != nil {
			t.Error(err)
		}
	})
}

// brief runs a container that ends with this code at once, and returns the code that
// the runtime tells.
func brief(t *testing.T, runtime cri.RuntimeServiceClient, sandbox string, config *cri.PodSandboxConfig, name string, code int32) (int32, error) {
	ctx := t.Context()
	c, err := runtime.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: sandbox, SandboxConfig: config, Config: &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: name}, Image: &cri.ImageSpec{Image: testImage}, Args: []string{"exit", fmt.Sprint(code)}, Linux: &cri.LinuxContainerConfig{},
	}})
	if err != nil {
		return 0, err
	}
	if _, err := runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: c.ContainerId}); err != nil {
		return 0, err
	}
	for {
		resp, err := runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: c.ContainerId})
		if err != nil {
			return 0, err
		}
		if resp.Status.State == cri.ContainerState_CONTAINER_EXITED {
			_, err = runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: c.ContainerId})
			return resp.Status.ExitCode, err
		}
		time.Sleep(10 * time.Millisecond)
	}
}
