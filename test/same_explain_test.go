package test

import (
	"regexp"
	"slices"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A sameReason says why facts differ.
type sameReason struct {
	fact   *regexp.Regexp // of sameDifference
	when   func(twin) bool
	reason string
}

// explainSame returns the reason for a difference; nil if there is none.
func explainSame(diff string, tw twin) *sameReason {
	for i := range sameDifferences {
		if r := &sameDifferences[i]; r.fact.MatchString(diff) && (r.when == nil || r.when(tw)) {
			return r
		}
	}
	return nil
}

var sameDifferences = []sameReason{
	{
		regexp.MustCompile(`^containerd only: \w+ mount /sys/fs/cgroup`), mountsSys,
		"where the host's /sys is mounted containerd mounts the cgroups too, and that over them; crispd leaves them out",
	},
	{
		regexp.MustCompile(`mount /\S+ root=/ ro,relatime propagation= tmpfs ro(,size=4k,nr_inodes=1)?$`), nil,
		"what covers a masked directory has no room for anything on crispd, though nobody can write to either",
	},
	{
		regexp.MustCompile(`file /proc/sys/net/ipv4/(ping_group_range|ip_unprivileged_port_start) `), nil,
		"crispd lets pods of their own network ping and listen on low ports, as later releases of containerd do",
	},
	{
		regexp.MustCompile(`mount /\S+ root=/\S* r[wo],(nosuid,)?relatime propagation=\S* tmpfs rw,size=1024k`),
		func(tw twin) bool { return len(tw.container.Mounts) > 0 },
		"an explicit rw replaces all options of a mount's source, as with runc since 1.2; Debian's is older",
	},
	{
		regexp.MustCompile(`init fd 0 (\S*/dev)?/null$`), nil,
		"the container's own /dev/null, opened where the executor had prepared it: the same device",
	},
	{
		regexp.MustCompile(`mount /sys root=/ rw,nosuid,nodev,noexec,relatime propagation= sysfs r[ow]$`), nil,
		"of a network namespace's sysfs who mounts it first says whether it is read-only: containerd's pause container; the mount is writable",
	},
}

func mountsSys(tw twin) bool {
	return slices.ContainsFunc(tw.container.Mounts, func(m *cri.Mount) bool { return m.ContainerPath == "/sys" })
}
