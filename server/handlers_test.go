package server

import (
	"errors"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/server/spec"
)

// A handler has its own engine, settings and features; it is told back as it was
// asked for, and survives a restart with what was made of it.
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

	// One that is configured no more: its sandboxes can be stopped, and get nothing new.
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
