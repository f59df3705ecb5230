package oci

import (
	"maps"
	"strings"

	"github.com/crisp-cri/crisp/internal/fault"
)

// checkSysctls refuses parameters of the whole machine, and those of a namespace that the
// sandbox shares with it: setting them there would change them for everybody.
func checkSysctls(cfg SandboxConfig) error {
	for name := range cfg.Sysctls {
		path := sysctlPath(name)
		for _, part := range strings.Split(path, "/") {
			if !clean(part) {
				return fault.Invalid.Errorf("sysctl %q does not name a parameter", name)
			}
		}
		switch kind := sysctlNamespace(path); {
		case kind == "":
			return fault.Invalid.Errorf("sysctl %q is not namespaced", name)
		case kind == "hostname":
			return fault.Invalid.Errorf("sysctl %q is set by the hostname of the sandbox", name)
		case (kind == "net" || kind == "uts") && cfg.HostNetwork, kind == "ipc" && cfg.HostIPC:
			return fault.Invalid.Errorf("sysctl %q is of the %s namespace, which is the host's", name, kind)
		}
	}
	return nil
}

// sysctlNamespace returns the kind of namespace that a parameter belongs to; "" if it is the
// machine's: namespaces(7), ipc_namespaces(7), uts_namespaces(7).
func sysctlNamespace(path string) string {
	switch {
	case strings.HasPrefix(path, "net/"):
		return "net"
	case strings.HasPrefix(path, "kernel/shm"), strings.HasPrefix(path, "kernel/msg"),
		path == "kernel/sem", path == "kernel/sem_next_id", strings.HasPrefix(path, "fs/mqueue/"):
		return "ipc"
	case path == "kernel/domainname":
		return "uts"
	case path == "kernel/hostname":
		return "hostname"
	}
	return ""
}

// DeviceSysctls separates the parameters of single network devices, keyed by their paths below
// /proc/sys, from the others. They can be set only once the device is in its namespace. The
// loopback device is there from the beginning.
func DeviceSysctls(all map[string]string) (devices, others map[string]string) {
	devices, others = make(map[string]string), maps.Clone(all)
	for name, value := range all {
		path := sysctlPath(name)
		part := strings.Split(path, "/") // net/ipv4/conf/eth0/rp_filter
		if len(part) != 5 || part[0] != "net" || part[2] != "conf" && part[2] != "neigh" {
			continue
		}
		if d := part[3]; d == "all" || d == "default" || d == "lo" || !clean(d) || !clean(part[1]) || !clean(part[4]) {
			continue
		}
		devices[path] = value
		delete(others, name)
	}
	return devices, others
}

// clean reports whether part of a path is a proper name.
func clean(part string) bool { return part != "" && part != "." && part != ".." }

// sysctlPath turns a name into a path below /proc/sys. sysctl(8): "Use either '.' or '/' as
// separator"; the first one found is the separator, and the other then stands for itself, as in
// net/ipv4/conf/eth0.100/forwarding.
func sysctlPath(name string) string {
	if i := strings.IndexAny(name, "./"); i < 0 || name[i] == '/' {
		return name
	}
	return strings.Map(func(r rune) rune {
		switch r {
		case '.':
			return '/'
		case '/':
			return '.'
		}
		return r
	}, name)
}
