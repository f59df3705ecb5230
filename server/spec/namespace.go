package spec

import (
	"path/filepath"
	"strings"

	"github.com/crisp-cri/crisp/internal/fault"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
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
			return nil, fault.Internal.Errorf("%s namespace %q is no absolute path", kind, path)
		}
	}
	// With the unified hierarchy a container sees its own cgroup as the root.
	if in.Host.CgroupV2 && !privileged(in) {
		list = append(list, specs.LinuxNamespace{Type: specs.CgroupNamespace})
	}
	return list, nil
}

// ipcSysctls belong to the IPC namespace (namespaces(7), ipc_namespaces(7)).
var ipcSysctls = map[string]bool{
	"kernel.msgmax": true, "kernel.msgmnb": true, "kernel.msgmni": true, "kernel.msg_next_id": true,
	"kernel.auto_msgmni": true, "kernel.sem": true, "kernel.sem_next_id": true, "kernel.shmall": true,
	"kernel.shmmax": true, "kernel.shmmni": true, "kernel.shm_next_id": true, "kernel.shm_rmid_forced": true,
}

// Sysctls are the sandbox's, with dots as separators. One that belongs to a
// namespace which the sandbox shares with the host, or to none, is
// fault.Invalid: it would change the host.
func Sysctls(sandbox *cri.PodSandboxConfig) (map[string]string, error) {
	asked := sandbox.GetLinux().GetSysctls()
	if len(asked) == 0 {
		return nil, nil
	}
	o := sandbox.GetLinux().GetSecurityContext().GetNamespaceOptions()
	out := make(map[string]string, len(asked))
	for name, value := range asked {
		key := dotted(name)
		for part := range strings.SplitSeq(key, ".") {
			if strings.Trim(part, "/") == "" { // "", or what would be ".." in the path
				return nil, fault.Invalid.Errorf("sysctl %q is no name of a sysctl", name)
			}
		}
		switch {
		case strings.HasPrefix(key, "net."):
			if o.GetNetwork() == cri.NamespaceMode_NODE {
				return nil, fault.Invalid.Errorf("sysctl %q is the host's: the sandbox uses the host's network", name)
			}
		case ipcSysctls[key] || strings.HasPrefix(key, "fs.mqueue."):
			if o.GetIpc() == cri.NamespaceMode_NODE {
				return nil, fault.Invalid.Errorf("sysctl %q is the host's: the sandbox uses the host's IPC", name)
			}
		case key == "kernel.domainname" || key == "kernel.hostname":
			if o.GetNetwork() == cri.NamespaceMode_NODE {
				return nil, fault.Invalid.Errorf("sysctl %q is the host's: the sandbox uses the host's name", name)
			}
		default:
			return nil, fault.Invalid.Errorf("sysctl %q is not in a namespace: it would change the host", name)
		}
		out[key] = value
	}
	return out, nil
}

// dotted turns "net/ipv4/conf/eth0.1/x" into "net.ipv4.conf.eth0/1.x": whichever
// of the two separators comes first is the separator (sysctl.d(5)).
func dotted(name string) string {
	if i := strings.IndexAny(name, "./"); i < 0 || name[i] == '.' {
		return name
	}
	return strings.Map(func(r rune) rune {
		switch r {
		case '/':
			return '.'
		case '.':
			return '/'
		}
		return r
	}, name)
}
