package spec

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/internal/fault"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// errRROUnsupported begins the error for a recursive read-only mount that this host cannot make:
// the kubelet recognizes it by that word.
const errRROUnsupported = "RROUnsupported"

// mounts returns the file systems that every container has, the sandbox's files, the image's
// volumes and CRI's mounts, parents before children. A CRI mount replaces the default one at the
// same place. One at /dev also replaces everything below it, as does one that propagates to the
// host; one at /sys includes the host's cgroups, for containers that watch all of them. Places are
// compared, not paths: the image's links may lead from one mount into another.
func mounts(in Input) (list []specs.Mount, rootfsPropagation string, err error) {
	taken := map[string]bool{}
	var asked []specs.Mount
	for _, m := range in.Mounts {
		om, err := bind(m, in.Host)
		if err != nil {
			return nil, "", err
		}
		taken[m.place()] = true
		asked = append(asked, om)
		switch {
		case m.Propagation == cri.MountPropagation_PROPAGATION_BIDIRECTIONAL:
			rootfsPropagation = "rshared"
		case m.Propagation == cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER && rootfsPropagation == "":
			rootfsPropagation = "rslave"
		}
	}
	for _, m := range slices.Concat(kernelMounts(in), fileMounts(in), deviceMounts(in)) {
		at := in.place(m.Destination)
		below := func(dir string) bool { return taken[in.place(dir)] && strings.HasPrefix(m.Destination, dir+"/") }
		if taken[at] || below("/dev") || below("/sys") || spreads(in.Mounts, at) != "" {
			continue
		}
		list = append(list, m)
	}
	for _, v := range in.Volumes {
		if !taken[v.Path] && spreads(in.Mounts, v.Path) == "" {
			list = append(list, specs.Mount{Destination: v.Path, Type: "bind", Source: v.Source, Options: []string{"rbind", "rprivate", "rw", "nosuid", "nodev"}})
		}
	}
	list = append(list, asked...)
	slices.SortStableFunc(list, func(a, b specs.Mount) int { return depth(a.Destination) - depth(b.Destination) })
	return list, rootfsPropagation, nil
}

// place returns where a path of the container leads.
func (in Input) place(name string) string {
	name = path.Join("/", name)
	if in.Resolve == nil {
		return name
	}
	return in.Resolve(name)
}

func (m Mount) place() string { return cmp.Or(m.Place, path.Join("/", m.ContainerPath)) }

// spreads returns the place of the CRI mount through which a mount at the place p would also
// appear on the host, over the host's own files; "" if none would.
func spreads(list []Mount, p string) string {
	on, to := "", cri.MountPropagation_PROPAGATION_PRIVATE
	for _, m := range list {
		dest := m.place()
		if len(dest) >= len(on) && strings.HasPrefix(p, dest+"/") {
			on, to = dest, m.Propagation
		}
	}
	if to != cri.MountPropagation_PROPAGATION_BIDIRECTIONAL {
		return ""
	}
	return on
}

// checkCovers refuses masked or read-only paths that would be so on the host too, as both are
// implemented by mounts.
func checkCovers(in Input, paths []string) error {
	for _, p := range paths {
		if on := spreads(in.Mounts, in.place(p)+"/"); on != "" {
			return fault.Invalid.Errorf("mount at %s propagates to the host: %s cannot be masked or made read-only in it", on, p)
		}
	}
	return nil
}

func depth(p string) int {
	if p == "/" {
		return 0
	}
	return strings.Count(p, "/")
}

// kernelMounts returns the mounts without a source. CRI: with privilege, "any sysfs and procfs
// mounts are mounted RW."
func kernelMounts(in Input) []specs.Mount {
	access := "ro"
	if privileged(in) {
		access = "rw"
	}
	list := append(commonMounts(access), specs.Mount{
		Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "relatime", access},
	})
	if in.Host.CgroupV2 && !ownCgroupNamespace(in) {
		// A new mount in the host's cgroup namespace would apply its options to all others
		// (nsdelegate would be lost). Mounts below the host's are not wanted.
		list[len(list)-1] = specs.Mount{Destination: "/sys/fs/cgroup", Type: "bind", Source: "/sys/fs/cgroup", Options: []string{"bind", "rprivate", "nosuid", "noexec", "nodev", "relatime", access}}
	}
	if in.ids() != nil {
		list = inUserNamespace(in, list)
	}
	if in.Files.Shm == "" {
		list = append(list, specs.Mount{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"}})
	}
	return list
}

// commonMounts returns the mounts that every container has, a sandbox's own too. access is that of
// sysfs: "ro" or "rw".
func commonMounts(access string) []specs.Mount {
	return []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", access}},
	}
}

// fileMounts returns the mounts of the sandbox's files. They are writable if the root file
// system is; /dev/shm always is.
func fileMounts(in Input) []specs.Mount {
	access := "rw"
	if in.Container.GetLinux().GetSecurityContext().GetReadonlyRootfs() {
		access = "ro"
	}
	uids, gids := sandboxMappings(in)
	var list []specs.Mount
	add := func(source, destination string, options ...string) {
		if source != "" {
			list = append(list, specs.Mount{Destination: destination, Type: "bind", Source: source, Options: append([]string{"rbind", "rprivate"}, options...)})
		}
	}
	add(in.Files.Hosts, "/etc/hosts", access)
	add(in.Files.Hostname, "/etc/hostname", access)
	add(in.Files.ResolvConf, "/etc/resolv.conf", access)
	for i := range list {
		list[i].UIDMappings, list[i].GIDMappings = uids, gids
	}
	if in.Namespaces[string(specs.IPCNamespace)] == hostNamespace {
		add(in.Files.Shm, "/dev/shm") // with the options of the host's
	} else {
		add(in.Files.Shm, "/dev/shm", "nosuid", "noexec", "nodev", "rw")
	}
	return list
}

func bind(m Mount, h Host) (specs.Mount, error) {
	dest := path.Clean(m.ContainerPath)
	switch {
	case m.ContainerPath == "":
		return specs.Mount{}, fault.Invalid.Errorf("mount of %q has no container path", m.HostPath)
	case !path.IsAbs(dest):
		// Docker's users write such paths, relative to the root directory.
		dest = path.Join("/", dest)
	case dest == "/":
		return specs.Mount{}, fault.Invalid.Errorf("mount of %q: the container path is the root directory", m.HostPath)
	}
	if m.Image.GetImage() != "" {
		if m.HostPath != "" {
			return specs.Mount{}, fault.Invalid.Errorf("mount at %s has both an image and the host path %q", dest, m.HostPath)
		}
		if !m.Readonly {
			return specs.Mount{}, fault.Invalid.Errorf("image mount at %s is not read-only", dest)
		}
	}
	uids, gids, err := mappings(m, dest)
	if err != nil {
		return specs.Mount{}, err
	}
	if !path.IsAbs(m.Source) {
		return specs.Mount{}, fault.Invalid.Errorf("mount at %s: host path %q is not absolute", dest, m.HostPath)
	}
	spread, err := propagation(m, dest)
	if err != nil {
		return specs.Mount{}, err
	}
	mode, err := access(m, h, dest)
	if err != nil {
		return specs.Mount{}, err
	}
	options := []string{"rbind", spread, mode}
	for _, o := range m.MountOptions {
		if !slices.Contains(mountOptions, o) {
			return specs.Mount{}, fault.Invalid.Errorf("mount at %s: option %q is not one of %s", dest, o, strings.Join(mountOptions, ", "))
		}
		if !slices.Contains(options, o) {
			options = append(options, o)
		}
	}
	return specs.Mount{Destination: dest, Type: "bind", Source: m.Source, Options: options, UIDMappings: uids, GIDMappings: gids}, nil
}

// mountOptions are the options of a bind mount that CRI's mount_options may contain: those that
// restrict it, and those for access times.
var mountOptions = []string{"noexec", "nodev", "nosuid", "ro", "noatime", "nodiratime", "relatime", "strictatime", "nosymfollow"}

func propagation(m Mount, dest string) (string, error) {
	switch m.Propagation {
	case cri.MountPropagation_PROPAGATION_PRIVATE:
		return "rprivate", nil
	case cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER:
		if !m.Shared && !m.Slave {
			return "", fault.Invalid.Errorf("mount at %s: %s is neither on a shared nor on a slave mount, so nothing can propagate from the host", dest, m.Source)
		}
		return "rslave", nil
	case cri.MountPropagation_PROPAGATION_BIDIRECTIONAL:
		if !m.Shared {
			return "", fault.Invalid.Errorf("mount at %s: %s is not on a shared mount, so nothing can propagate to the host", dest, m.Source)
		}
		return "rshared", nil
	}
	return "", fault.Invalid.Errorf("mount at %s: propagation %d is not known", dest, m.Propagation)
}

// access returns the option that makes a mount read-only. CRI: with recursive_read_only,
// "readonly must be explicitly set to true, and propagation must be PRIVATE".
func access(m Mount, h Host, dest string) (string, error) {
	switch {
	case m.RecursiveReadOnly && !m.Readonly:
		return "", fault.Invalid.Errorf("mount at %s is recursively read-only but not read-only", dest)
	case m.RecursiveReadOnly && m.Propagation != cri.MountPropagation_PROPAGATION_PRIVATE:
		return "", fault.Invalid.Errorf("mount at %s: recursively read-only needs private propagation, not %s", dest, m.Propagation)
	case m.RecursiveReadOnly && !h.RecursiveRO:
		return "", fault.Invalid.Errorf("%s: mount at %s: the kernel has no mount_setattr(2)", errRROUnsupported, dest)
	case m.RecursiveReadOnly:
		return "rro", nil
	case m.Readonly:
		return "ro", nil
	}
	return "rw", nil
}
