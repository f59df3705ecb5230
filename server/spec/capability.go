package spec

import (
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/internal/fault"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// allCapabilities are those of capabilities(7) in numeric order, as of Linux
// 5.9; none has been added since.
var allCapabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID",
	"CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP", "CAP_LINUX_IMMUTABLE",
	"CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_IPC_LOCK",
	"CAP_IPC_OWNER", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE",
	"CAP_SYS_PACCT", "CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_NICE", "CAP_SYS_RESOURCE",
	"CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_MKNOD", "CAP_LEASE", "CAP_AUDIT_WRITE",
	"CAP_AUDIT_CONTROL", "CAP_SETFCAP", "CAP_MAC_OVERRIDE", "CAP_MAC_ADMIN", "CAP_SYSLOG",
	"CAP_WAKE_ALARM", "CAP_BLOCK_SUSPEND", "CAP_AUDIT_READ", "CAP_PERFMON", "CAP_BPF",
	"CAP_CHECKPOINT_RESTORE",
}

// DefaultCapabilities are the capabilities of a container that requests none, unless the node's
// configuration sets others.
func DefaultCapabilities() []string {
	return []string{
		"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID",
		"CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_NET_RAW", "CAP_SYS_CHROOT", "CAP_MKNOD", "CAP_AUDIT_WRITE", "CAP_SETFCAP",
	}
}

// capabilities applies CRI's additions and removals. "ALL" is applied first, in
// whichever list it is: dropping ALL and adding X leaves X. What is both added and dropped,
// ALL or by its name, is dropped, as by containerd and CRI-O.
//
// The inheritable set has only the ambient capabilities: a file without the set-user-ID bit but
// with inheritable capabilities must not raise them (CVE-2022-24769).
func capabilities(sc *cri.LinuxContainerSecurityContext, h Host) (*specs.LinuxCapabilities, error) {
	have := h.Capabilities
	if have == nil {
		have = allCapabilities
	}
	add, addAll, err := capabilityNames(sc.GetCapabilities().GetAddCapabilities())
	if err != nil {
		return nil, err
	}
	drop, dropAll, err := capabilityNames(sc.GetCapabilities().GetDropCapabilities())
	if err != nil {
		return nil, err
	}
	ambient, ambientAll, err := capabilityNames(sc.GetCapabilities().GetAddAmbientCapabilities())
	if err != nil {
		return nil, err
	}
	if sc.GetPrivileged() {
		// CRI: "All capabilities are added"; removals MAY have no effect.
		add, drop, addAll, dropAll = nil, nil, true, false
	}

	set := map[string]bool{}
	base := h.DefaultCapabilities
	if base == nil {
		base = DefaultCapabilities()
	}
	switch {
	case dropAll:
		base, ambientAll = nil, false
	case addAll || ambientAll:
		base = have
	}
	for _, c := range base {
		set[c] = slices.Contains(have, c)
	}
	if ambientAll {
		ambient = slices.Clone(have)
	}
	for _, c := range slices.Concat(add, ambient) {
		if !slices.Contains(have, c) {
			return nil, fault.Invalid.Errorf("capability %s is not available: the container runtime lacks it itself", c)
		}
		set[c] = true
	}
	for _, c := range drop {
		set[c] = false
	}
	ambient = slices.DeleteFunc(ambient, func(c string) bool { return slices.Contains(drop, c) })
	all := slices.DeleteFunc(slices.Clone(allCapabilities), func(c string) bool { return !set[c] })
	return &specs.LinuxCapabilities{Bounding: all, Effective: all, Permitted: all, Inheritable: ambient, Ambient: ambient}, nil
}

// CapabilitiesOf returns the names of a set in which bit n is capability number n.
func CapabilitiesOf(mask uint64) []string {
	list := []string{}
	for n, c := range allCapabilities {
		if mask&(1<<n) != 0 {
			list = append(list, c)
		}
	}
	return list
}

// CapabilityNames checks names and returns them as CAP_…: CRI and configurations omit that
// prefix and use any case.
func CapabilityNames(names []string) ([]string, error) {
	list, all, err := capabilityNames(names)
	if all {
		return slices.Clone(allCapabilities), err
	}
	return list, err
}

func capabilityNames(names []string) (list []string, all bool, err error) {
	list = []string{}
	for _, n := range names {
		c := strings.ToUpper(n)
		if c == "ALL" || c == "CAP_ALL" {
			all = true
			continue
		}
		if !strings.HasPrefix(c, "CAP_") {
			c = "CAP_" + c
		}
		if !slices.Contains(allCapabilities, c) {
			return nil, false, fault.Invalid.Errorf("capability %q is not known", n)
		}
		list = append(list, c)
	}
	return list, all, nil
}
