// Package spec translates a CRI container into an OCI runtime specification.
//
// It is pure: it reads no disk, asks no kernel and knows no time. Whatever has
// to be looked up (where a mount's source really is, which node a device has,
// what /etc/passwd of the image says, the bytes of a seccomp profile) is looked
// up by the caller and handed in with Input, so that every rule in here can be
// tested by a pair of JSON documents.
//
// The order of a container's creation is:
//
//	ResolveUser   passwd and group of the root file system → User
//	SeccompOf     which profile the CRI asks for, and which file that means
//	Build         Input → specs.Spec
//	RawEnv        the environment again, if JSON could not carry it
//
// and later, for its life:
//
//	ExecProcess      the container's process, with other arguments
//	MergeResources   what an update changes; Resources turns it into OCI's
//
// Everything here concerns Linux only. A namespace that the sandbox made is
// joined by its path; the host's name and sysctls were set when it was made, so
// the specification carries neither.
package spec

import (
	"fmt"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/userns"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A Host is what does not change from one container to the next: the facts of
// this machine and the node's own defaults.
type Host struct {
	CgroupV2       bool         // the unified hierarchy; "unified" resources need it
	SwapLimit      bool         // the kernel accounts and limits swap
	Hugetlb        bool         // the hugetlb controller is there
	RecursiveRO    bool         // mount_setattr(2) with AT_RECURSIVE, Linux ≥ 5.12
	Seccomp        bool         // seccomp filters are compiled into the kernel
	AppArmor       bool         // AppArmor is enabled
	Arches         []specs.Arch // whose programs this kernel runs, for the built-in seccomp profile; nil = all that it could
	MinOOMScoreAdj int          // the lowest oom_score_adj we may give; -1000 with CAP_SYS_RESOURCE

	AppArmorDefault     string              // profile for RuntimeDefault; "" = it could not be loaded
	Capabilities        []string            // what the executor has to give, as CAP_…; nil = all known
	DefaultCapabilities []string            // what a container gets unasked; nil = DefaultCapabilities()
	SeccompDefault      []byte              // JSON that replaces the built-in default profile; nil = built in
	Rlimits             []specs.POSIXRlimit // what every container gets
	CgroupNamespace     string              // "private", "host"; "" = private on cgroup v2. What is privileged has the host's
	DevicesFromUser     bool                // devices belong to the container's user instead of the host's owner
}

// An Input is all that Build needs. Container, Sandbox and Root are required.
type Input struct {
	Host      Host
	Container *cri.ContainerConfig
	Sandbox   *cri.PodSandboxConfig
	Image     v1.ImageConfig // the image's config.json, its "config"
	Root      string         // absolute path of the mounted root file system
	User      User           // from ResolveUser
	Hostname  string         // the value of $HOSTNAME

	// IDs is the map of the sandbox's user namespace; nil = the host's. The root
	// file system and the image mounts have owners that are mapped already.
	IDs *userns.Map

	// Namespaces says for each of "network", "uts", "ipc", "pid" what the
	// container joins: a path, "host" for none, "" or missing for one of its own.
	// Mount namespaces are always its own; the cgroup namespace follows from
	// Host and privilege. "user" is a path, and counts with IDs only.
	Namespaces map[string]string

	Mounts  []Mount  // one for each of Container.Mounts, in their order
	Volumes []Volume // the image's
	Files   Files    // the sandbox's files, mounted where no CRI mount is
	Devices []Device // Container.Devices resolved; with privilege also all of the host's

	CgroupsPath string // from CgroupsPath

	SeccompProfile []byte // content of the file that SeccompOf named, for Localhost only
	ProcessLabel   string // SELinux; "" = none
	MountLabel     string // SELinux; "" = none
}

// Files are the host paths of the files that a sandbox gives its containers.
// One that is "" is not mounted.
type Files struct {
	Hosts, Hostname, ResolvConf string
	Shm                         string // a directory: the sandbox's tmpfs, or the host's /dev/shm
}

// A Mount is a mount the CRI asks for with what its source turned out to be.
type Mount struct {
	*cri.Mount
	// Source is the absolute path on the host, symlinks followed: of host_path,
	// or of the mounted image (image_sub_path included).
	Source string
	// Shared and Slave are the propagation of the mount that Source is on
	// ("shared:" and "master:" of proc_pid_mountinfo(5)).
	Shared, Slave bool
}

// A Volume is a directory of the container's own, mounted because its image asks for
// it. Its owners are mapped already.
type Volume struct {
	Path   string // in the root file system: absolute, without links
	Source string // absolute path on the host
}

// A Device is a device node and what the container may do with it.
type Device struct {
	specs.LinuxDevice
	Source string // absolute path on the host; only a user namespace needs it, in which no node can be made
	Access string // of "rwm"; "" = "rwm"
}

// Build returns the specification of one container. An error that the request
// is to blame for is fault.Invalid.
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
	nodes, rules, err := devices(in)
	if err != nil {
		return nil, err
	}
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
	// The lists are taken as they are: an empty one means none, which is how the
	// kubelet says procMount: Unmasked.
	if !sc.GetPrivileged() {
		linux.MaskedPaths = sc.GetMaskedPaths()
		linux.ReadonlyPaths = sc.GetReadonlyPaths()
	}
	return &specs.Spec{
		Version: specs.Version,
		Process: proc,
		Root:    &specs.Root{Path: in.Root, Readonly: sc.GetReadonlyRootfs()},
		Mounts:  mountList,
		Linux:   linux,
	}, nil
}

// check refuses what no translation can make right.
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
