package test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The results of many containers and concurrent calls. Scripts test how one container ends;
// these tests are in Go because they compare a thousand answers.
func TestAgentEnds(t *testing.T) {
	l := startLab(t)
	listsDuringStops(t, l)
	runtimeRefuses(t, l)
}

// listsDuringStops: while containers are slow to stop, the runtime still answers other
// calls.
func listsDuringStops(t *testing.T, l *lab) {
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
				t.Fatalf("%d of %d containers run: the list came after their stop", running, many)
			}
			id := l.containers("c0")[0].Id
			resp, err := l.n.runtime().ContainerStatus(t.Context(), &cri.ContainerStatusRequest{ContainerId: id})
			if err != nil || resp.Status.State != cri.ContainerState_CONTAINER_RUNNING {
				t.Fatalf("status while it is being stopped: %v, %v", resp, err)
			}
		}
		for _, c := range l.containers("") { // instead of waiting for the grace period
			if _, err := l.n.runtime().StopContainer(t.Context(), &cri.StopContainerRequest{ContainerId: c.Id}); err != nil {
				t.Error(err)
			}
		}
	})
}

// runtimeRefuses: crispd refuses what it does not have, and gives no container the exit
// code of another.
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
						t.Errorf("container %d of worker %d ended with %d, want %d: %v", i, w, got, want, err)
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

// brief runs a container that exits with code at once, and returns the code that the
// runtime reports.
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
