package server

import (
	"encoding/json"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/oci/wire"
	"github.com/crisp-cri/crisp/test/ocitest"
)

// A node whose executor does not answer is not ready, with the reason, until it does: a scheduler
// must send no pods there.
func TestNotReadyWithoutAnExecutor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := ocitest.NewMachine(t)
		r := m.Open(t)
		s := &Server{runtime: r, network: &fakeNetwork{}}
		s.Reconfigure(Options{Network: s.network})
		ready := func() *cri.RuntimeCondition {
			t.Helper()
			resp, err := s.Status(t.Context(), &cri.StatusRequest{})
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range resp.Status.Conditions {
				if c.Type == cri.RuntimeReady {
					return c
				}
			}
			t.Fatal("there is no condition RuntimeReady")
			return nil
		}
		if c := ready(); !c.Status || c.Reason != "" || c.Message != "" {
			t.Errorf("with an executor that answers: %v", c)
		}
		release := m.Executor.Block(wire.MethodPing)
		time.Sleep(40 * time.Second)
		synctest.Wait()
		if c := ready(); c.Status || c.Reason != "ExecutorNotReady" || c.Message == "" {
			t.Errorf("with one that does not answer: %v", c)
		}
		release()
		time.Sleep(time.Minute)
		synctest.Wait()
		if c := ready(); !c.Status || c.Message != "" {
			t.Errorf("when it answers again: %v", c)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}

// The verbose status of a pod has the paths of its namespaces where tools expect them: crictl
// inspectp | jq '.info.runtimeSpec.linux.namespaces[] | select(.type=="network").path'
func TestInfoNamesNamespaces(t *testing.T) {
	n := newNode(t)
	host := pod("host")
	host.Linux.SecurityContext.NamespaceOptions.Network = cri.NamespaceMode_NODE
	for name, test := range map[string]struct {
		config *cri.PodSandboxConfig
		kinds  []specs.LinuxNamespaceType
	}{
		"own":    {pod("own"), []specs.LinuxNamespaceType{specs.IPCNamespace, specs.NetworkNamespace, specs.UTSNamespace}},
		"host's": {host, []specs.LinuxNamespaceType{specs.IPCNamespace}},
	} {
		resp, err := n.PodSandboxStatus(t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: n.run(t, test.config), Verbose: true})
		if err != nil {
			t.Fatal(err)
		}
		var info struct {
			NetNS       string
			RuntimeSpec specs.Spec
		}
		if err := json.Unmarshal([]byte(resp.Info["info"]), &info); err != nil {
			t.Fatal(err)
		}
		var kinds []specs.LinuxNamespaceType
		for _, ns := range info.RuntimeSpec.Linux.Namespaces {
			if kinds = append(kinds, ns.Type); ns.Path == "" || ns.Type == specs.NetworkNamespace && ns.Path != info.NetNS {
				t.Errorf("%s: the %s namespace is at %q, the network at %q", name, ns.Type, ns.Path, info.NetNS)
			}
		}
		if slices.Sort(kinds); !slices.Equal(kinds, test.kinds) {
			t.Errorf("%s: the info has the namespaces %v, want %v", name, kinds, test.kinds)
		}
	}
}
