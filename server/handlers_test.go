package server

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/server/spec"
)

// The pods of a handler with its own network are attached to that one, from ADD to DEL. It does not
// affect the node's readiness, and GC tells each network which of its pods still exist.
func TestHandlerNetwork(t *testing.T) {
	n := newNode(t)
	own := &fakeNetwork{}
	n.handlers = map[string]Handler{"own": {Network: own}, "plain": {}}
	n.restart(t)
	var ids []string
	for _, handler := range []string{"", "own", "plain"} {
		sb, err := n.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: pod("pod" + handler), RuntimeHandler: handler})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, sb.PodSandboxId)
	}
	if got := own.attached(); !slices.Equal(got, ids[1:2]) || len(n.net.attached()) != 2 {
		t.Errorf("attached: %q to its own, %q to the node's", got, n.net.attached())
	}
	own.failing("Status", errors.New("no such luck"))
	resp, err := n.Status(t.Context(), &cri.StatusRequest{Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range resp.Status.Conditions {
		if !c.Status {
			t.Errorf("%s is not: %s", c.Type, c.Message)
		}
	}
	if want := `"network":{"":"ready","crisp":"ready","own":"no such luck","plain":"ready"}`; !strings.Contains(resp.Info["config"], want) {
		t.Errorf("info has no %s: %s", want, resp.Info["config"])
	}
	n.restart(t)
	for _, f := range []*fakeNetwork{own, n.net} {
		if kept := slices.Sorted(slices.Values(f.kept)); !slices.Equal(kept, slices.Sorted(slices.Values(ids))) {
			t.Errorf("kept %q, want %q", kept, ids)
		}
	}
	for _, id := range ids {
		if _, err := n.StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
			t.Error(err)
		}
	}
	if left := append(own.attached(), n.net.attached()...); len(left) > 0 {
		t.Errorf("still attached: %q", left)
	}
}

// A handler has its own OCI runtime, settings and features; the status shows the requested
// handler, and a container keeps the settings of its creation over a restart.
func TestHandlers(t *testing.T) {
	n := newNode(t)
	n.handlers = map[string]Handler{
		"runc": {Engine: "/usr/sbin/runc", SpecHost: spec.Host{DefaultCapabilities: []string{"CAP_KILL"}, CgroupNamespace: "private"}, NoUserNS: errors.New("not it")},
		"able": {SpecHost: spec.Host{RecursiveRO: true, CgroupV2: true, CgroupNamespace: "host"}},
	}
	n.restart(t)

	resp, err := n.Status(t.Context(), &cri.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, h := range resp.RuntimeHandlers {
		line := h.Name + ":"
		if h.Features.RecursiveReadOnlyMounts {
			line += " rro"
		}
		if h.Features.UserNamespaces {
			line += " userns"
		}
		got = append(got, line)
	}
	if want := []string{": userns", "able: rro userns", "crisp: userns", "runc:"}; !slices.Equal(got, want) {
		t.Errorf("handlers are %q, want %q", got, want)
	}

	_, err = n.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: pod("web"), RuntimeHandler: "kata"})
	wantCode(t, "unknown handler", err, "InvalidArgument")
	if !strings.Contains(err.Error(), `"kata" is not known, only able, crisp, runc`) {
		t.Errorf("unknown handler: %v", err)
	}
	mapped := pod("mapped")
	mapped.Linux.SecurityContext.NamespaceOptions.UsernsOptions = &cri.UserNamespace{
		Mode: cri.NamespaceMode_POD, Uids: []*cri.IDMapping{{HostId: 1 << 16, Length: 1 << 16}}, Gids: []*cri.IDMapping{{HostId: 1 << 16, Length: 1 << 16}},
	}
	_, err = n.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: mapped, RuntimeHandler: "runc"})
	wantCode(t, "user namespace", err, "InvalidArgument")
	if _, err := n.images.PullImage(t.Context(), &cri.PullImageRequest{Image: &cri.ImageSpec{Image: testImage, RuntimeHandler: "runc"}}); err != nil {
		t.Error(err)
	}

	for handler, want := range map[string]struct {
		engine   string
		cgroupNS bool
		caps     []string
	}{
		"":     {"", false, spec.DefaultCapabilities()},
		"able": {"", false, spec.DefaultCapabilities()},
		"runc": {"/usr/sbin/runc", true, []string{"CAP_KILL"}},
	} {
		sb, err := n.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: pod("pod" + handler), RuntimeHandler: handler})
		if err != nil {
			t.Fatal(err)
		}
		n.restart(t)
		status, err := n.PodSandboxStatus(t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: sb.PodSandboxId})
		if err != nil || status.Status.RuntimeHandler != handler {
			t.Errorf("handler %q: status has %q, %v", handler, status.GetStatus().GetRuntimeHandler(), err)
		}
		cc := forever("c" + handler)
		cc.Linux.SecurityContext.Capabilities = nil
		c, err := n.runtime.Container(n.begin(t, sb.PodSandboxId, cc))
		if err != nil {
			t.Fatal(err)
		}
		if c.Config().Engine != want.engine {
			t.Errorf("handler %q: engine is %q", handler, c.Config().Engine)
		}
		made := c.Config().Spec
		hasNS := slices.ContainsFunc(made.Linux.Namespaces, func(ns specs.LinuxNamespace) bool { return ns.Type == specs.CgroupNamespace })
		bounding, all := slices.Sorted(slices.Values(made.Process.Capabilities.Bounding)), slices.Sorted(slices.Values(want.caps))
		if hasNS != want.cgroupNS || !slices.Equal(bounding, all) {
			t.Errorf("handler %q: cgroup namespace %v, capabilities %v", handler, hasNS, bounding)
		}
	}

	// A handler that is no longer configured: its sandboxes can be stopped, and accept nothing new.
	sb, err := n.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: pod("last"), RuntimeHandler: "runc"})
	if err != nil {
		t.Fatal(err)
	}
	n.handlers = nil
	n.restart(t)
	_, err = n.CreateContainer(t.Context(), &cri.CreateContainerRequest{PodSandboxId: sb.PodSandboxId, Config: forever("late"), SandboxConfig: pod("last")})
	wantCode(t, "handler that is gone", err, "InvalidArgument")
	if _, err := n.StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: sb.PodSandboxId}); err != nil {
		t.Error(err)
	}
}

// An OCI runtime ignores what it does not know of a spec, so a container that depends on it is
// refused.
func TestHandlerOfLimitedRuntime(t *testing.T) {
	n := newNode(t)
	n.handlers = map[string]Handler{
		"old": {Engine: "/usr/sbin/runc"},
		"new": {Engine: "/usr/sbin/runc", Features: oci.Features{IDMap: true, NoSymFollow: true, NetDevices: true}},
	}
	devices := `{"cdiVersion": "1.1.0", "kind": "test.com/net", "devices": [{"name": "a", "containerEdits": {"netDevices": [{"hostInterfaceName": "x", "name": "y"}]}}]}`
	if err := os.WriteFile(filepath.Join(n.cdiDir(), "net.json"), []byte(devices), 0o600); err != nil {
		t.Fatal(err)
	}
	n.restart(t)
	one := []*cri.IDMapping{{HostId: 1, Length: 1}}
	for what, c := range map[string]struct {
		ask  func(*cri.ContainerConfig)
		want string
	}{
		"mapped mount": {func(c *cri.ContainerConfig) {
			c.Mounts = []*cri.Mount{{ContainerPath: "/m", HostPath: t.TempDir(), UidMappings: one, GidMappings: one}}
		}, "mount at /m: "},
		"mount without links": {func(c *cri.ContainerConfig) {
			c.Mounts = []*cri.Mount{{ContainerPath: "/m", HostPath: t.TempDir(), MountOptions: []string{"nosymfollow"}}}
		}, "mount at /m: "},
		"network device": {func(c *cri.ContainerConfig) { c.CDIDevices = []*cri.CDIDevice{{Name: "test.com/net=a"}} }, "network device x: "},
	} {
		for _, handler := range []string{"old", "new", ""} {
			sandbox := pod(strings.ReplaceAll(what+handler, " ", "-"))
			sb, err := n.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: sandbox, RuntimeHandler: handler})
			if err != nil {
				t.Fatal(err)
			}
			config := forever("c")
			c.ask(config)
			_, err = n.CreateContainer(t.Context(), &cri.CreateContainerRequest{PodSandboxId: sb.PodSandboxId, Config: config, SandboxConfig: sandbox})
			if handler != "old" {
				if err != nil {
					t.Errorf("%s, handler %q: %v", what, handler, err)
				}
				continue
			}
			wantCode(t, what, err, "InvalidArgument")
			if !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "/usr/sbin/runc") {
				t.Errorf("%s: %v, want %q", what, err, c.want)
			}
		}
	}
}
