package test

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"

	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/test/testenv"
)

// A twin is a pod with one container that is run on two runtimes.
type twin struct {
	sandbox   *cri.PodSandboxConfig
	container *cri.ContainerConfig
}

// A drawer makes random twins. Their mounts have sources below base, which has the shared mounts
// src and src/sub, and the file src/file.
type drawer struct {
	*rand.Rand
	base string
}

func (d *drawer) some(percent int) bool { return d.IntN(100) < percent }

func pick[T any](d *drawer, list ...T) T { return list[d.IntN(len(list))] }

// twin makes a random twin. It has no features that Debian's containerd lacks (see samePromises).
func (d *drawer) twin(name string) twin {
	ns := &cri.NamespaceOption{
		Network: pick(d, cri.NamespaceMode_NODE, cri.NamespaceMode_NODE, cri.NamespaceMode_POD),
		Pid:     pick(d, cri.NamespaceMode_CONTAINER, cri.NamespaceMode_CONTAINER, cri.NamespaceMode_POD, cri.NamespaceMode_NODE),
		Ipc:     pick(d, cri.NamespaceMode_POD, cri.NamespaceMode_POD, cri.NamespaceMode_NODE),
	}
	privileged := d.some(20)
	sb := &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: name, Namespace: "same", Uid: "uid-" + name},
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent: "/" + sameCgroup,
			SecurityContext: &cri.LinuxSandboxSecurityContext{
				NamespaceOptions: ns, Privileged: privileged,
				Seccomp: &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault},
			},
		},
	}
	if ns.Network == cri.NamespaceMode_POD {
		sb.Hostname = name
		if d.some(50) {
			sb.Linux.Sysctls = map[string]string{"net.ipv4.ip_unprivileged_port_start": "1000", "net.core.somaxconn": "77"}
		}
	}
	if d.some(50) {
		sb.DnsConfig = &cri.DNSConfig{Servers: []string{"192.0.2.53"}, Searches: []string{"a.example", "b.example"}, Options: []string{"ndots:5"}}
	}
	if ns.Ipc == cri.NamespaceMode_POD && d.some(30) {
		if sb.Linux.Sysctls == nil {
			sb.Linux.Sysctls = map[string]string{}
		}
		sb.Linux.Sysctls[pick(d, "kernel.shm_rmid_forced", "kernel.shmmni", "fs.mqueue.msg_max")] = "1"
	}
	c := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: "c"},
		Image:    &cri.ImageSpec{Image: pick(d, testImage, testImage, "crisp.test/named:latest", "crisp.test/numbered:latest")},
		Command:  []string{"/testbin", "catch", "view", "print", sameEnd, "sleep", "for-ever"},
		LogPath:  "c.log",
		Tty:      d.some(15),
		Stdin:    d.some(20),
		Linux:    &cri.LinuxContainerConfig{Resources: d.resources(), SecurityContext: d.security(privileged, ns)},
		Mounts:   d.mounts(privileged),
	}
	if d.some(30) {
		c.WorkingDir = pick(d, "/", "/tmp", "/etc", "/new/dir", "/etc/passwd", "relative")
	}
	for i := range d.IntN(4) {
		c.Envs = append(c.Envs, &cri.KeyValue{Key: pick(d, "A", "B", "PATH", "HOSTNAME", "HOME"), Value: fmt.Appendf(nil, "value %d", i)})
	}
	c.Devices = d.devices()
	return twin{sb, c}
}

// modernize adds what containerd knows since 2.0. In a user namespace it makes no devices in new
// directories, and with the host's network it shows the host's cgroups, see samePromises.
func (d *drawer) modernize(tw twin) {
	for _, p := range samePromises {
		users := p.name == "user namespace"
		if users && (!ownNetwork(tw) || mountAt(tw, "/sys") != nil || len(tw.container.Devices) > 0) || p.name == "ambient capability" || p.name == "mount options" {
			continue
		}
		if d.some(40) {
			p.change(tw)
		}
	}
}

func (d *drawer) resources() *cri.LinuxContainerResources {
	r := &cri.LinuxContainerResources{OomScoreAdj: pick[int64](d, 0, 0, 500, 1000, 2)}
	if d.some(50) {
		r.CpuShares = pick[int64](d, 2, 512, 1024)
	}
	if d.some(30) {
		r.CpuPeriod, r.CpuQuota = 100000, pick[int64](d, 20000, 150000)
	}
	if d.some(30) {
		r.MemoryLimitInBytes = pick[int64](d, 64, 100) << 20
		if d.some(30) {
			r.MemorySwapLimitInBytes = pick[int64](d, 100, 200) << 20
		}
	}
	if d.some(20) {
		r.CpusetCpus = "0"
	}
	if d.some(20) {
		r.CpusetMems = "0"
	}
	if d.some(20) && testenv.Exists("/sys/fs/cgroup/hugetlb") {
		r.HugepageLimits = []*cri.HugepageLimit{{PageSize: "2MB", Limit: pick[uint64](d, 0, 4<<20)}}
	}
	return r
}

// defaultMasked and defaultReadonly are what the kubelet sends, unless procMount is Unmasked.
var (
	defaultMasked = []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats",
		"/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
	}
	defaultReadonly = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

func (d *drawer) security(privileged bool, ns *cri.NamespaceOption) *cri.LinuxContainerSecurityContext {
	s := &cri.LinuxContainerSecurityContext{
		NamespaceOptions: proto.CloneOf(ns), Privileged: privileged,
		ReadonlyRootfs: d.some(30), NoNewPrivs: !privileged && d.some(40),
		Seccomp: pick(d, &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault},
			&cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined},
			&cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost, LocalhostRef: filepath.Join(d.base, "seccomp.json")}),
		Apparmor: &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined},
	}
	if d.some(70) {
		s.MaskedPaths, s.ReadonlyPaths = defaultMasked, defaultReadonly
	} else if d.some(30) {
		s.MaskedPaths, s.ReadonlyPaths = []string{"/tmp", "/etc/passwd", "/none"}, []string{"/testbin", "/none", "/proc/sys/net"}
	}
	if d.some(50) {
		s.RunAsUser = &cri.Int64Value{Value: pick[int64](d, 0, 1000, 12345)}
		if d.some(50) {
			s.RunAsGroup = &cri.Int64Value{Value: pick[int64](d, 0, 1000, 54321)}
		}
	} else if d.some(20) {
		s.RunAsUsername = pick(d, "user", "user", "nobody-there")
	} else if d.some(5) {
		s.RunAsGroup = &cri.Int64Value{Value: 1000}
	}
	for range d.IntN(3) {
		s.SupplementalGroups = append(s.SupplementalGroups, pick[int64](d, 7, 1000, 2000, 3000))
	}
	if d.some(50) {
		caps := &cri.Capability{}
		for range d.IntN(3) {
			caps.AddCapabilities = append(caps.AddCapabilities, pick(d, "NET_ADMIN", "SYS_TIME", "SYS_PTRACE", "CHOWN"))
		}
		for range d.IntN(3) {
			caps.DropCapabilities = append(caps.DropCapabilities, pick(d, "KILL", "CHOWN", "NET_RAW", "ALL"))
		}
		if d.some(10) {
			caps.AddCapabilities = []string{"ALL"}
		}
		s.Capabilities = caps
	}
	return s
}

func (d *drawer) mounts(privileged bool) (list []*cri.Mount) {
	src := filepath.Join(d.base, "src")
	if d.some(40) {
		m := &cri.Mount{HostPath: src, ContainerPath: pick(d, "/data", "/etc/data", "/tmp"), Readonly: d.some(40)}
		m.Propagation = pick(d, cri.MountPropagation_PROPAGATION_PRIVATE, cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER)
		if privileged && d.some(50) {
			m.Propagation = cri.MountPropagation_PROPAGATION_BIDIRECTIONAL
		}
		list = append(list, m)
		if m.Propagation != cri.MountPropagation_PROPAGATION_BIDIRECTIONAL && d.some(40) {
			list = append(list, &cri.Mount{HostPath: filepath.Join(src, "sub"), ContainerPath: filepath.Join(m.ContainerPath, "sub"), Readonly: d.some(50)})
		}
	}
	if d.some(30) {
		list = append(list, &cri.Mount{HostPath: filepath.Join(src, "file"), ContainerPath: pick(d, "/file", "/etc/hosts", "/etc/resolv.conf", "/dev/termination-log", "/proc/uptime"), Readonly: d.some(50)})
	}
	if d.some(10) {
		list = append(list, &cri.Mount{HostPath: filepath.Join(d.base, "missing"), ContainerPath: "/deep/as/it/is", Readonly: d.some(50)})
	}
	if d.some(10) {
		list = append(list, &cri.Mount{HostPath: filepath.Join(src, "sub"), ContainerPath: "/dev/shm"})
	}
	if d.some(10) {
		list = append(list, &cri.Mount{HostPath: "/sys", ContainerPath: "/sys", Readonly: d.some(50)})
	}
	return list
}

func (d *drawer) devices() (list []*cri.Device) {
	if d.some(30) {
		list = append(list, &cri.Device{HostPath: "/dev/null", ContainerPath: pick(d, "/dev/one", "/dev/deep/one"), Permissions: pick(d, "rwm", "r", "rw")})
	}
	if d.some(20) {
		list = append(list, &cri.Device{HostPath: "/dev/zero", ContainerPath: "/dev/two", Permissions: "rwm"})
	}
	if d.some(10) {
		list = append(list, &cri.Device{HostPath: filepath.Join(d.base, "nodes"), ContainerPath: "/dev/many", Permissions: "rw"})
	}
	return list
}
