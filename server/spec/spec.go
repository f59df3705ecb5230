// Package spec translates a CRI container into an OCI runtime specification.
//
// It is pure: it does not read the disk, the kernel's state or the clock. The caller looks up
// what is needed (the real path of a mount's source, a device's node, the image's /etc/passwd,
// the bytes of a seccomp profile) and passes it in Input, so that a pair of JSON documents can
// test every rule.
//
// The steps of a container's creation are:
//
//	ResolveUser   passwd and group of the root file system → User
//	SeccompOf     which profile the CRI requests, and which file that means
//	Build         Input → specs.Spec
//	RawEnv        the environment as bytes, if JSON cannot carry it
//
// and later, during its life:
//
//	ExecProcess      the container's process, with other arguments
//	MergeResources   the limits after an update; Resources converts them to OCI's
//
// Everything here is for Linux only. A container joins a namespace of the sandbox by its path;
// the hostname and the sysctls were set when that was created, so the specification has neither.
package spec

import (
	"fmt"
	"path/filepath"
	"slices"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/userns"
)

// A Host has the common input of all containers: the properties of this machine and the node's
// defaults.
type Host struct {
	CgroupV2       bool         // the unified hierarchy; "unified" resources need it
	SwapLimit      bool         // the kernel accounts and limits swap
	Hugetlb        bool         // the hugetlb controller is available
	RecursiveRO    bool         // mount_setattr(2) with AT_RECURSIVE, Linux ≥ 5.12
	Seccomp        bool         // seccomp filters are compiled into the kernel
	AppArmor       bool         // AppArmor is enabled
	NoNodes        bool         // no device node can be made: they are bind mounts of the host's
	Arches         []specs.Arch // whose programs this kernel runs, for the built-in seccomp profile; nil = all possible ones
	IDs            *userns.Map  // of a user namespace that crispd is in, with nothing of the host (kernel.Bare); nil = in none
	MinOOMScoreAdj int          // the lowest oom_score_adj we may give; -1000 with CAP_SYS_RESOURCE

	AppArmorDefault     string              // profile for RuntimeDefault; "" = it could not be loaded
	Capabilities        []string            // that the executor can grant, as CAP_…; nil = all known
	DefaultCapabilities []string            // of a container that requests none; nil = DefaultCapabilities()
	SeccompDefault      []byte              // JSON that replaces the built-in default profile; nil = built in
	Rlimits             []specs.POSIXRlimit // of every container
	CgroupNamespace     string              // "private", "host"; "" = private on cgroup v2. Privileged containers always have the host's
	DevicesFromUser     bool                // devices belong to the container's user instead of the host's owner
}

// An Input is the argument of Build. Container, Sandbox and Root are required.
type Input struct {
	Host      Host
	Container *cri.ContainerConfig
	Sandbox   *cri.PodSandboxConfig
	Image     v1.ImageConfig // the image's config.json, its "config"
	Root      string         // absolute path of the mounted root file system
	User      User           // from ResolveUser
	Hostname  string         // the value of $HOSTNAME

	// IDs are the mappings of the sandbox's user namespace; nil = the host's. The owners in the
	// root file system and the image mounts are already mapped.
	IDs *userns.Map

	// Namespaces says, for each of "network", "uts", "ipc", "pid", which namespace the container
	// joins: a path, "host" for the host's, "" or missing for a new one. The mount namespace is
	// always new; the cgroup namespace depends on Host and privilege. "user" is a path, used
	// only with IDs.
	Namespaces map[string]string

	// Resolve returns where a path leads in the container, as Mount.Place; nil = no path has links.
	Resolve func(name string) string

	Mounts  []Mount  // one for each of Container.Mounts, in their order
	Volumes []Volume // the image's
	Files   Files    // the sandbox's files, mounted unless a CRI mount has the same path
	Devices []Device // Container.Devices resolved; with privilege all of the host's too

	CgroupsPath string // from CgroupsPath

	SeccompProfile []byte // content of the file that SeccompOf named, for Localhost only
	ProcessLabel   string // SELinux; "" = none
	MountLabel     string // SELinux; "" = none
}

// Files are the host paths of the files that a sandbox provides to its containers. A file whose
// path is "" is not mounted.
type Files struct {
	Hosts, Hostname, ResolvConf string
	Shm, Queues                 string // directories: the sandbox's tmpfs, or the host's /dev/shm and, if that has it, /dev/mqueue
}

// A Mount is a mount requested through CRI, with its source resolved.
type Mount struct {
	*cri.Mount
	// Source is the absolute path on the host, with symlinks resolved: of
	// host_path, or of the mounted image (including image_sub_path).
	Source string
	// Place is where container_path leads among the image's files and the other mounts: absolute,
	// without symlinks. "" = it has none.
	Place string
	// Shared and Slave are the propagation of the mount that contains Source ("shared:" and
	// "master:" of proc_pid_mountinfo(5)).
	Shared, Slave bool
}

// A Volume is a directory of one container, mounted because its image declares it. The owners in
// it are already mapped.
type Volume struct {
	Path   string // in the root file system: absolute, without links
	Source string // absolute path on the host
}

// A Device is a device node and the container's access to it.
type Device struct {
	specs.LinuxDevice
	Source string // absolute path on the host; needed only where no node can be made (see BindsNodes)
	Access string // one or more of "rwm"
}

// Build returns the specification of one container. The error is fault.Invalid if
// the request is to blame.
func Build(in Input) (*specs.Spec, error) {
	sc := in.Container.GetLinux().GetSecurityContext()
	if err := check(in); err != nil {
		return nil, err
	}
	caps, err := capabilities(sc, in.Host)
	if err != nil {
		return nil, err
	}
	proc, err := process(in, caps)
	if err != nil {
		return nil, err
	}
	mountList, rootfsPropagation, err := mounts(in)
	if err != nil {
		return nil, err
	}
	namespaceList, err := namespaces(in)
	if err != nil {
		return nil, err
	}
	filter, err := seccomp(in, caps.Bounding)
	if err != nil {
		return nil, err
	}
	resources, err := Resources(in.Container.GetLinux().GetResources(), in.Host)
	if err != nil {
		return nil, err
	}
	nodes, rules := devices(in)
	resources.Devices = rules

	linux := &specs.Linux{
		Resources:         resources,
		CgroupsPath:       in.CgroupsPath,
		Namespaces:        namespaceList,
		Devices:           nodes,
		Seccomp:           filter,
		RootfsPropagation: rootfsPropagation,
		MountLabel:        in.MountLabel,
	}
	// The lists are used as they are: an empty one means none, which is how the kubelet
	// expresses procMount: Unmasked.
	if !sc.GetPrivileged() {
		linux.MaskedPaths = sc.GetMaskedPaths()
		linux.ReadonlyPaths = sc.GetReadonlyPaths()
		if err := checkCovers(in, slices.Concat(linux.MaskedPaths, linux.ReadonlyPaths)); err != nil {
			return nil, err
		}
	}
	return &specs.Spec{
		Version: specs.Version,
		Process: proc,
		Root:    &specs.Root{Path: in.Root, Readonly: sc.GetReadonlyRootfs()},
		Mounts:  mountList,
		Linux:   linux,
	}, nil
}

// check refuses requests that cannot be translated.
func check(in Input) error {
	name := in.Container.GetMetadata().GetName()
	if len(in.Mounts) != len(in.Container.GetMounts()) {
		return fault.Internal.Errorf("container %s: %d mounts are resolved of %d", name, len(in.Mounts), len(in.Container.GetMounts()))
	}
	if err := checkMapped(in); err != nil {
		return fmt.Errorf("container %s: %w", name, err)
	}
	if privileged(in) && !in.Sandbox.GetLinux().GetSecurityContext().GetPrivileged() {
		return fault.Invalid.Errorf("container %s is privileged but its sandbox is not", name)
	}
	return nil
}

func privileged(in Input) bool {
	return in.Container.GetLinux().GetSecurityContext().GetPrivileged()
}

// devices returns the device nodes to create and the rules of the device cgroup. libcontainer
// adds the nodes that every container has (null, zero, tty, …), and their rules.
func devices(in Input) ([]specs.LinuxDevice, []specs.LinuxDeviceCgroup) {
	var nodes []specs.LinuxDevice
	rules := []specs.LinuxDeviceCgroup{{Allow: privileged(in), Access: "rwm"}}
	for _, d := range in.Devices {
		node := d.LinuxDevice
		if in.Host.DevicesFromUser && !privileged(in) {
			uid, gid := in.User.UID, in.User.GID
			node.UID, node.GID = &uid, &gid
		}
		if in.IDs == nil && !in.Host.NoNodes || d.Source == "" || d.Source == d.Path {
			nodes = append(nodes, node)
		} // else deviceMounts has it
		if !privileged(in) {
			major, minor := d.Major, d.Minor
			rules = append(rules, specs.LinuxDeviceCgroup{Allow: true, Type: d.Type, Major: &major, Minor: &minor, Access: d.Access})
		}
	}
	return nodes, rules
}

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
