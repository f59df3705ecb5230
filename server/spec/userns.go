package spec

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/userns"
)

// ids returns the IDs of the user namespace that the container is in: its sandbox's, else crispd's. nil:
// the machine's first.
func (in Input) ids() *userns.Map { return cmp.Or(in.IDs, in.Host.IDs) }

// checkMapped refuses a user that is not mapped in the container's user namespace.
func checkMapped(in Input) error {
	ids, groups := in.ids(), slices.Concat([]uint32{in.User.GID}, in.User.Groups)
	if ids == nil {
		return nil
	}
	if _, ok := ids.UID.Translate(in.User.UID); !ok {
		return fault.Invalid.Errorf("user %d is not among the %d of the user namespace", in.User.UID, ids.UID.Length)
	}
	if in.IDs == nil { // those of the image are left out, see mappedGroups
		groups = groups[:1]
		for _, g := range in.Container.GetLinux().GetSecurityContext().GetSupplementalGroups() {
			groups = append(groups, uint32(g))
		}
	}
	for _, gid := range groups {
		if _, ok := ids.GID.Translate(gid); !ok {
			return fault.Invalid.Errorf("group %d is not among the %d of the user namespace", gid, ids.GID.Length)
		}
	}
	return nil
}

// mappedGroups returns the container's supplementary groups. Where crispd itself has few IDs, a user may
// be in more groups of the image than that: podman leaves them out, too.
func mappedGroups(in Input) []uint32 {
	if in.Host.IDs == nil {
		return in.User.Groups
	}
	return slices.DeleteFunc(slices.Clone(in.User.Groups), func(gid uint32) bool { return gid >= in.Host.IDs.GID.Length })
}

// inUserNamespace replaces mounts that cannot be made in a user namespace.
func inUserNamespace(in Input, list []specs.Mount) []specs.Mount {
	if in.Namespaces[string(specs.IPCNamespace)] == hostNamespace { // whose owner is in another user namespace
		list = slices.DeleteFunc(list, func(m specs.Mount) bool { return m.Destination == "/dev/mqueue" })
		if in.Files.Queues != "" {
			list = append(list, specs.Mount{Destination: "/dev/mqueue", Type: "bind", Source: in.Files.Queues, Options: []string{"rbind", "rprivate", "nosuid", "noexec", "nodev"}})
		}
	}
	for i := range list {
		switch m := &list[i]; m.Destination {
		case "/sys":
			// A sysfs shows a network namespace, and only that namespace's owner can mount one:
			// with the host's network /sys is a bind mount of the host's.
			if in.Namespaces[string(specs.NetworkNamespace)] != hostNamespace {
				continue
			}
			access := "rro" // including the file systems mounted below it
			if privileged(in) {
				access = "rw"
			}
			*m = specs.Mount{Destination: "/sys", Type: "bind", Source: "/sys", Options: []string{"rbind", "rprivate", "nosuid", "noexec", "nodev", access}}
		case "/dev/pts":
			if _, ok := in.ids().GID.Translate(5); !ok { // tty
				m.Options = slices.DeleteFunc(m.Options, func(o string) bool { return strings.HasPrefix(o, "gid=") })
			}
		}
	}
	return list
}

// deviceMounts returns the devices that have another name in the container, where no node can
// be made: libcontainer binds the host's node of the same name.
func deviceMounts(in Input) []specs.Mount {
	if in.IDs == nil && !in.Host.NoNodes {
		return nil
	}
	var list []specs.Mount
	for _, d := range in.Devices {
		if d.Source != "" && d.Source != d.Path {
			list = append(list, specs.Mount{Destination: d.Path, Type: "bind", Source: d.Source, Options: []string{"bind", "rprivate", "nosuid", "noexec"}})
		}
	}
	return list
}

// BindsNodes reports whether the devices of a container that Build has returned are bind mounts: in
// a user namespace no node can be made.
func BindsNodes(s *specs.Spec, h Host) bool {
	return h.NoNodes || slices.ContainsFunc(s.Linux.Namespaces, func(ns specs.LinuxNamespace) bool { return ns.Type == specs.UserNamespace })
}

// sandboxMappings map the owner of the sandbox's files, root, to root inside.
func sandboxMappings(in Input) (uids, gids []specs.LinuxIDMapping) {
	if in.IDs == nil {
		return nil, nil
	}
	return in.IDs.UID.Mappings(), in.IDs.GID.Mappings()
}

// mappings returns the ID mappings that a CRI mount requests. Only the mount itself is
// ID-mapped, not the file systems mounted below it, which may not support it. CRI has the IDs of
// the container and of the host; those on disk are the container's.
func mappings(m Mount, dest string) (uids, gids []specs.LinuxIDMapping, err error) {
	if m.Image.GetImage() != "" {
		return nil, nil, nil // it has the sandbox's
	}
	if (len(m.UidMappings) > 0) != (len(m.GidMappings) > 0) {
		return nil, nil, fault.Invalid.Errorf("mount at %s: %d uid and %d gid mappings: there must be both or none", dest, len(m.UidMappings), len(m.GidMappings))
	}
	if uids, err = idMappings(m.UidMappings); err == nil {
		gids, err = idMappings(m.GidMappings)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("mount at %s: %w", dest, err)
	}
	return uids, gids, nil
}

func idMappings(list []*cri.IDMapping) ([]specs.LinuxIDMapping, error) {
	var all []specs.LinuxIDMapping
	for _, m := range list {
		if m.GetLength() == 0 {
			return nil, fault.Invalid.Errorf("mapping of container ID %d has no length", m.GetContainerId())
		}
		all = append(all, specs.LinuxIDMapping{ContainerID: m.ContainerId, HostID: m.HostId, Size: m.Length})
	}
	return all, nil
}
