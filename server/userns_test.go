package server

import (
	"errors"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/userns"
)

// mapped returns options with a user namespace of one mapping.
func mapped(container, host, length uint32) *cri.NamespaceOption {
	m := []*cri.IDMapping{{ContainerId: container, HostId: host, Length: length}}
	return &cri.NamespaceOption{
		Pid:           cri.NamespaceMode_CONTAINER,
		UsernsOptions: &cri.UserNamespace{Mode: cri.NamespaceMode_POD, Uids: m, Gids: m},
	}
}

func TestUserNamespace(t *testing.T) {
	user := func(mode cri.NamespaceMode, uids, gids []*cri.IDMapping) *cri.NamespaceOption {
		return &cri.NamespaceOption{UsernsOptions: &cri.UserNamespace{Mode: mode, Uids: uids, Gids: gids}}
	}
	one := []*cri.IDMapping{{HostId: 1000, Length: 10}}
	for name, tc := range map[string]struct {
		options *cri.NamespaceOption
		want    *userns.Map
		refused bool
	}{
		"no options":         {nil, nil, false},
		"no user options":    {&cri.NamespaceOption{}, nil, false},
		"node":               {user(cri.NamespaceMode_NODE, one, one), nil, false},
		"pod without maps":   {user(cri.NamespaceMode_POD, nil, nil), nil, true},
		"pod":                {mapped(0, 1000, 10), &userns.Map{UID: userns.Range{Host: 1000, Length: 10}, GID: userns.Range{Host: 1000, Length: 10}}, false},
		"container":          {user(cri.NamespaceMode_CONTAINER, nil, nil), nil, true},
		"target":             {user(cri.NamespaceMode_TARGET, one, one), nil, true},
		"users only":         {user(cri.NamespaceMode_POD, one, nil), nil, true},
		"groups only":        {user(cri.NamespaceMode_POD, nil, one), nil, true},
		"two mappings":       {user(cri.NamespaceMode_POD, append(one, one...), one), nil, true},
		"root is not mapped": {mapped(1, 1000, 10), nil, true},
		"no length":          {mapped(0, 1000, 0), nil, true},
		"too far":            {mapped(0, 1<<32-5, 10), nil, true},
	} {
		got, err := userNamespace(tc.options)
		if (err != nil) != tc.refused || (got == nil) != (tc.want == nil) || got != nil && *got != *tc.want {
			t.Errorf("%s: got %v, %v", name, got, err)
		}
	}
}

// The containers of a sandbox with a user namespace must request that one, and the containers of
// other sandboxes none.
func TestContainerOfAnotherUserNamespace(t *testing.T) {
	n := newNode(t)
	inside := pod("inside")
	inside.Linux.SecurityContext = &cri.LinuxSandboxSecurityContext{NamespaceOptions: mapped(0, 5000, 2000)}
	none := &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER}
	own, host := n.run(t, inside), n.run(t, pod("host"))
	for name, tc := range map[string]struct {
		sandbox string
		options *cri.NamespaceOption
		refused bool
	}{
		"the same":          {own, mapped(0, 5000, 2000), false},
		"none in it":        {own, none, true},
		"another in it":     {own, mapped(0, 5000, 2001), true},
		"one in the host's": {host, mapped(0, 5000, 2000), true},
		"none in the host":  {host, none, false},
		"that cannot be":    {own, mapped(1, 5000, 2000), true},
	} {
		c := forever("c-" + name)
		c.Linux = &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: tc.options}}
		_, err := n.CreateContainer(t.Context(), &cri.CreateContainerRequest{PodSandboxId: tc.sandbox, Config: c})
		if tc.refused {
			wantCode(t, name, err, "InvalidArgument")
		} else if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A node that cannot make user namespaces reports that, and rejects pods that need one.
func TestNoUserNamespaces(t *testing.T) {
	n := newNode(t)
	status := func() (handlers, hostNetwork bool) {
		resp, err := n.Status(t.Context(), &cri.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		handlers = true
		for _, h := range resp.RuntimeHandlers {
			handlers = handlers && h.Features.UserNamespaces
		}
		return handlers, resp.Features.UserNamespacesHostNetwork
	}
	if all, net := status(); !all || !net {
		t.Errorf("features are %v, %v", all, net)
	}
	n.server.o.NoUserNS = errors.New("switched off")
	n.server.Reconfigure(n.server.o)
	if all, net := status(); all || net {
		t.Errorf("without user namespaces features are %v, %v", all, net)
	}
	config := pod("web")
	config.Linux.SecurityContext = &cri.LinuxSandboxSecurityContext{NamespaceOptions: mapped(0, 1000, 10)}
	_, err := n.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: config})
	wantCode(t, "a sandbox with one", err, "InvalidArgument")
	n.run(t, pod("web"))
}
