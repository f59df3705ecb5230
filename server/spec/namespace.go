package spec

import (
	"path/filepath"

	"github.com/crisp-cri/crisp/internal/fault"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// hostNamespace is the value of Input.Namespaces for a namespace shared with the host.
const hostNamespace = "host"

func namespaces(in Input) ([]specs.LinuxNamespace, error) {
	list := []specs.LinuxNamespace{{Type: specs.MountNamespace}}
	for _, kind := range []specs.LinuxNamespaceType{specs.NetworkNamespace, specs.UTSNamespace, specs.IPCNamespace, specs.PIDNamespace} {
		switch path := in.Namespaces[string(kind)]; {
		case path == hostNamespace:
		case path == "" || filepath.IsAbs(path):
			list = append(list, specs.LinuxNamespace{Type: kind, Path: path})
		default:
			return nil, fault.Internal.Errorf("%s namespace %q is not an absolute path", kind, path)
		}
	}
	if in.IDs != nil {
		path := in.Namespaces[string(specs.UserNamespace)]
		if !filepath.IsAbs(path) {
			return nil, fault.Internal.Errorf("user namespace %q is not an absolute path", path)
		}
		// Its mappings are not repeated: libcontainer reads them from the namespace.
		list = append(list, specs.LinuxNamespace{Type: specs.UserNamespace, Path: path})
	}
	if ownCgroupNamespace(in) {
		list = append(list, specs.LinuxNamespace{Type: specs.CgroupNamespace})
	}
	return list, nil
}

// ownCgroupNamespace reports whether a container sees its own cgroup as the root: on cgroup v2,
// unless it is privileged or the node is configured otherwise.
func ownCgroupNamespace(in Input) bool {
	private := in.Host.CgroupNamespace == "private" || in.Host.CgroupNamespace == "" && in.Host.CgroupV2
	return private && !privileged(in)
}
