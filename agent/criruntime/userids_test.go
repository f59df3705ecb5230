package criruntime

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	internalapi "k8s.io/cri-api/pkg/apis"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A mapped runtime has sandboxes with these user namespaces. A listed sandbox that is not among
// them has been removed since.
type mapped struct {
	internalapi.RuntimeService
	sandboxes map[string]*cri.UserNamespace
	err       error // of the status of c
}

func (m mapped) ListPodSandbox(context.Context, *cri.PodSandboxFilter) ([]*cri.PodSandbox, error) {
	var list []*cri.PodSandbox
	for _, id := range []string{"a", "b", "c", "d"} {
		list = append(list, &cri.PodSandbox{Id: id})
	}
	return list, nil
}

func (m mapped) PodSandboxStatus(_ context.Context, id string, _ bool) (*cri.PodSandboxStatusResponse, error) {
	ns, there := m.sandboxes[id]
	switch {
	case id == "c" && m.err != nil:
		return nil, m.err
	case !there:
		return nil, status.Errorf(codes.NotFound, "no sandbox %q", id)
	}
	return &cri.PodSandboxStatusResponse{Status: &cri.PodSandboxStatus{Id: id, Linux: &cri.LinuxPodSandboxStatus{
		Namespaces: &cri.Namespace{Options: &cri.NamespaceOption{UsernsOptions: ns}},
	}}}, nil
}

// The IDs of all sandboxes are in use, whichever client made them. A sandbox that is removed
// meanwhile uses none. IDs that the runtime cannot report do not count as free.
func TestUserIDs(t *testing.T) {
	ids := func(first uint32) []*cri.IDMapping { return []*cri.IDMapping{{HostId: first, Length: 65536}} }
	runtime := mapped{sandboxes: map[string]*cri.UserNamespace{
		"a": {Mode: cri.NamespaceMode_POD, Uids: ids(65536), Gids: ids(131072)},
		"b": {Mode: cri.NamespaceMode_NODE},
		"d": {Mode: cri.NamespaceMode_POD, Uids: ids(196608), Gids: ids(196608)},
	}}
	got, err := UserIDs(runtime)
	if err != nil {
		t.Fatal(err)
	}
	want := append(append(append(ids(65536), ids(131072)...), ids(196608)...), ids(196608)...)
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("IDs in use (-want +got):\n%s", diff)
	}
	runtime.err = status.Error(codes.Unavailable, "away")
	if got, err := UserIDs(runtime); err == nil {
		t.Errorf("of a runtime that does not answer: %v, %v", got, err)
	}
}
