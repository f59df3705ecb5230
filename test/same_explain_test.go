package test

import (
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/opencontainers/cgroups"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A sameReason explains a difference between the facts on Debian's containerd, 1.6 with runc 1.1,
// and on crispd.
type sameReason struct {
	reason string
	when   func(twin) bool // nil means always
	fact   *regexp.Regexp
	here   string // the replacement on crispd, see Regexp.Expand; "" means none
}

var sameReasons = []sameReason{
	{
		"on cgroup v1 an exec has a cgroup of its own in freezer, to be killed with all that it has started", nil,
		regexp.MustCompile(`^(exec file /proc/self/cgroup \d+:freezer:/.*)$`), "$1/exec",
	},
	{
		"on cgroup v2 an exec has a cgroup of its own in a container with the host's PID namespace",
		func(tw twin) bool {
			return cgroups.IsCgroup2UnifiedMode() && tw.sandbox.Linux.SecurityContext.NamespaceOptions.Pid == cri.NamespaceMode_NODE
		},
		regexp.MustCompile(`^(exec file /proc/self/cgroup 0::/.*)$`), "$1/exec",
	},
	{
		"if the host's /sys is mounted containerd also mounts the cgroups, over the host's; crispd does not",
		func(tw twin) bool { return mountAt(tw, "/sys") != nil },
		regexp.MustCompile(`^\w+ mount /sys/fs/cgroup\S* root=\S+ r[wo],nosuid,nodev,noexec,relatime .*`), "",
	},
	{
		"the tmpfs over a masked directory has no space, as in runc since 1.3; on containerd it is read-only anyway", nil,
		regexp.MustCompile(`^(\w+ mount (?:/proc/(?:acpi|asound|scsi)|/sys/firmware|/sys/devices/virtual/powercap|/tmp) root=/ ro,relatime propagation=\S* tmpfs ro)$`),
		"$1,size=4k,nr_inodes=1",
	},
	{
		"pods with their own network may ping, as in containerd since 2.0", ownNetwork,
		regexp.MustCompile(`^(\w+ file /proc/sys/net/ipv4/ping_group_range) 1\t0$`), "$1 0\t2147483647",
	},
	{
		"pods with their own network may listen on low ports, as in containerd since 2.0", ownNetwork,
		regexp.MustCompile(`^(\w+ file /proc/sys/net/ipv4/ip_unprivileged_port_start) 1024$`), "$1 0",
	},
	{
		"whether the sysfs of a network namespace is read-only depends on its first mount with mount(2), by the pause container or libcontainer; the fast init and privileged containers make none, and the options of the mount itself are the same",
		func(tw twin) bool {
			return ownNetwork(tw) && (fastInit(tw) || tw.container.Linux.SecurityContext.Privileged)
		},
		regexp.MustCompile(`^(\w+ mount /sys root=/ .* sysfs) ro$`), "$1 rw",
	},
	{
		"the default seccomp filter forbids io_uring, AF_ALG and AF_VSOCK, as in later releases", filtered,
		regexp.MustCompile(`^(\w+ call (?:socket (?:alg|vsock)|io_uring_setup)) .*`), "$1 operation not permitted",
	},
	{
		"the default seccomp filter allows process_vm_readv where ptrace(2) is allowed", filtered,
		regexp.MustCompile(`^(\w+ call process_vm_readv) .*`), "$1 errno 0",
	},
	{
		"with a mount that propagates to the host, all mounts are shared with namespaces that the container makes (rootfsPropagation), as in runc since 1.1.13, but not with the host",
		propagates,
		regexp.MustCompile(`^(\w+ mount .* propagation=)((?:master)?) `), "${1}shared,$2 ",
	},
}

// modernReasons are those of containerd 2.3 with runc 1.5, besides.
var modernReasons = []sameReason{
	{
		"a pod's /dev/shm keeps its options; containerd binds it with an explicit rw, which replaces them with runc since 1.2", nil,
		regexp.MustCompile(`^(\w+ mount /dev/shm root=/ rw),relatime (propagation=\S* tmpfs rw,size=65536k)$`), "$1,nosuid,nodev,noexec,relatime $2",
	},
	{
		"the root of a user namespace owns the pod's /dev/shm; with containerd no user in it does", inUserNS,
		regexp.MustCompile(`^(\w+ (?:dev|stat) /dev/shm 41777) 65534:65534 `), "$1 0:0 ",
	},
	{
		"so says its mount", inUserNS,
		regexp.MustCompile(`^(\w+ mount /dev/shm root=/ .* tmpfs rw,size=65536k)$`), "$1,uid=200000,gid=200000",
	},
	{
		"queues are made before the namespace's IDs are mapped; all users may make some", inUserNS,
		regexp.MustCompile(`^(\w+ dev /dev/mqueue 41777) 0:65534 `), "$1 65534:65534 ",
	},
	{
		"options of a mount's source are locked in a user namespace", inUserNS,
		regexp.MustCompile(`^(\w+ mount \S+ root=\S+ r[wo])(,relatime .* tmpfs rw,size=1024k.*)`), "$1,nosuid$2",
	},
	{
		"a recursively read-only mount keeps the options of its source, see samePromises; containerd adds an explicit ro",
		func(tw twin) bool {
			return len(tw.container.Mounts) == 1 && tw.container.Mounts[0].RecursiveReadOnly && !inUserNS(tw)
		},
		regexp.MustCompile(`^(\w+ mount \S+ root=\S+ ro)(,relatime .* tmpfs rw,size=1024k.*)`), "$1,nosuid$2",
	},
	{
		"the first mount(2) of a sysfs in a user namespace is the container's",
		func(tw twin) bool { return inUserNS(tw) && !tw.container.Linux.SecurityContext.Privileged },
		regexp.MustCompile(`^(\w+ mount /sys root=/ .* sysfs) rw$`), "$1 ro",
	},
}

func inUserNS(tw twin) bool {
	return tw.sandbox.Linux.SecurityContext.NamespaceOptions.UsernsOptions != nil
}

// fastInit reports whether a container is started by the fast init.
func fastInit(tw twin) bool {
	return os.Getenv("CRISP_TEST_INIT") != "libcontainer" && !slices.ContainsFunc(tw.container.Mounts, func(m *cri.Mount) bool {
		return inUserNS(tw) && m.Propagation == cri.MountPropagation_PROPAGATION_BIDIRECTIONAL || strings.HasPrefix(m.ContainerPath, "/proc/")
	})
}

// filtered reports whether a container has the default seccomp filter.
func filtered(tw twin) bool {
	sc := tw.container.Linux.SecurityContext
	return !sc.Privileged && sc.Seccomp.ProfileType == cri.SecurityProfile_RuntimeDefault
}

func mountAt(tw twin, path string) *cri.Mount {
	for _, m := range tw.container.Mounts {
		if m.ContainerPath == path {
			return m
		}
	}
	return nil
}

func ownNetwork(tw twin) bool {
	return tw.sandbox.Linux.SecurityContext.NamespaceOptions.Network == cri.NamespaceMode_POD
}

func propagates(tw twin) bool {
	return slices.ContainsFunc(tw.container.Mounts, func(m *cri.Mount) bool {
		return m.Propagation == cri.MountPropagation_PROPAGATION_BIDIRECTIONAL
	})
}

// predict returns the facts that processes on crispd must see, given the facts on containerd, and
// counts the reasons of the differences.
func predict(facts []string, tw twin, reasons []sameReason, count map[string]int) (list []string) {
	for _, fact := range facts {
		for _, r := range reasons {
			if r.when != nil && !r.when(tw) || !r.fact.MatchString(fact) {
				continue
			}
			fact = strings.Replace(r.fact.ReplaceAllString(fact, r.here), "shared, ", "shared ", 1)
			count[r.reason]++
			if fact == "" {
				break
			}
		}
		if fact != "" {
			list = append(list, fact)
		}
	}
	return list
}

const sameFlags = "an explicit rw or ro replaces all options of a mount's source, as in runc since 1.2"

// withoutFlags removes the options of mount sources from requested mounts. Of several mounts at a
// path the last is the requested one.
func withoutFlags(facts []string, tw twin, count map[string]int) []string {
	facts = slices.Clone(facts)
	for _, who := range []string{"init", "exec"} {
		done := map[string]bool{}
		for i, fact := range slices.Backward(facts) {
			f := strings.Fields(fact)
			if len(f) < 5 || f[0] != who || f[1] != "mount" || done[f[2]] || mountAt(tw, f[2]) == nil {
				continue
			}
			done[f[2]] = true
			if now := strings.Replace(fact, ",nosuid,relatime ", ",relatime ", 1); now != fact && strings.Contains(fact, "size=1024k") {
				facts[i] = now
				count[sameFlags]++
			}
		}
	}
	return facts
}
