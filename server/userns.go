package server

import (
	"context"
	"fmt"
	"math"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/image/rootfs"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/userns"
	"github.com/crisp-cri/crisp/oci"
)

// userNamespace returns the user namespace that options ask for. It is nil for the host's, which
// missing options and mode NODE mean.
func userNamespace(o *cri.NamespaceOption) (*userns.Map, error) {
	u := o.GetUsernsOptions()
	switch {
	case u == nil || u.Mode == cri.NamespaceMode_NODE:
		return nil, nil
	case u.Mode != cri.NamespaceMode_POD:
		return nil, fault.Invalid.Errorf("user namespace mode %s is neither POD nor NODE", u.Mode)
	}
	var m userns.Map
	var err error
	if m.UID, err = idRange("uids", u.Uids); err != nil {
		return nil, err
	}
	if m.GID, err = idRange("gids", u.Gids); err != nil {
		return nil, err
	}
	return &m, nil
}

// idRange reads a list that must be a single mapping, from ID 0 on. CRI allows more; the kubelet
// asks for just this, and the root of a pod must be mapped.
func idRange(field string, list []*cri.IDMapping) (r userns.Range, err error) {
	if len(list) != 1 {
		return r, fault.Invalid.Errorf("user namespace: %s has %d mappings, not one", field, len(list))
	}
	m := list[0]
	switch {
	case m.GetContainerId() != 0:
		return r, fault.Invalid.Errorf("user namespace: %s maps from container ID %d, not from 0", field, m.ContainerId)
	case m.GetLength() == 0 || uint64(m.HostId)+uint64(m.Length) > math.MaxUint32:
		return r, fault.Invalid.Errorf("user namespace: %s maps %d IDs from %d of the host, which is not a valid range", field, m.GetLength(), m.GetHostId())
	}
	return userns.Range{Host: m.HostId, Length: m.Length}, nil
}

// sameUserNamespace refuses a container that wants a different user namespace than its
// sandbox's.
//
// CRI, on UsernsOptions: "The config for the user namespace MUST be the same as the one used for
// the sandbox."
func sameUserNamespace(sb *oci.Sandbox, o *cri.NamespaceOption) error {
	want, err := userNamespace(o)
	if err != nil {
		return err
	}
	have := sb.Config().IDs
	if (want == nil) != (have == nil) || want != nil && *want != *have {
		return fault.Invalid.Errorf("the container wants %s, sandbox %s has %s", describe(want), sb.ID(), describe(have))
	}
	return nil
}

func describe(m *userns.Map) string {
	if m == nil {
		return "the host's user namespace"
	}
	return fmt.Sprintf("a user namespace of the host's %d users from %d and %d groups from %d", m.UID.Length, m.UID.Host, m.GID.Length, m.GID.Host)
}

// mountImage mounts an image for a container of sb, with file owners mapped for its user
// namespace and with the container's SELinux label, if any.
func (s *Server) mountImage(ctx context.Context, sb *oci.Sandbox, key, id string, o rootfs.MountOptions) (string, error) {
	if ids := sb.Config().IDs; ids != nil {
		o.IDs = &rootfs.IDMap{UserNS: sb.NamespacePath("user"), IDs: *ids}
	}
	return s.rootfs.Mount(ctx, key, id, o)
}
