package server

import (
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/test/formats"
)

// The server's part of the records of sandboxes and containers.
func TestFormats(t *testing.T) {
	formats.Check[sandboxExtra](t, "sandbox-extra", nil)
	formats.Check[containerExtra](t, "container-extra", nil)
}

// A message that is present and empty is written differently from an absent one, and a later
// crispd must read it as such.
func TestFormatOfEmptyMessages(t *testing.T) {
	for _, test := range []struct {
		record interface{ encode() ([]byte, error) }
		want   string
	}{
		{&sandboxRecord{}, `{"Version":1,"Config":null,"Labels":{}}`},
		{&sandboxRecord{config: &cri.PodSandboxConfig{}, resources: &cri.UpdatePodSandboxResourcesRequest{}}, `{"Version":1,"Config":"","Labels":{}}`},
		{&sandboxRecord{config: &cri.PodSandboxConfig{Hostname: "h"}, resources: &cri.UpdatePodSandboxResourcesRequest{PodSandboxId: "x"}},
			`{"Version":1,"Config":"EgFo","Resources":"CgF4","Labels":{}}`},
		{&containerRecord{}, `{"Version":1,"Config":null,"ImageID":"","ImageRef":"","User":null,"Signal":0}`},
		{&containerRecord{config: &cri.ContainerConfig{Tty: true}, imageUser: &cri.ContainerUser{}, resources: &cri.LinuxContainerResources{CpuShares: 2}, original: &cri.ImageSpec{Image: "i"}},
			`{"Version":1,"Config":"cAE=","ImageID":"","ImageRef":"","User":"","Signal":0,"Resources":"GAI=","Original":"CgFp"}`},
	} {
		if got, err := test.record.encode(); err != nil || string(got) != test.want {
			t.Errorf("a record is written as %s, want %s (%v)", got, test.want, err)
		}
	}
}
