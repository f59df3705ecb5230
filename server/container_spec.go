package server

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/regular"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/server/spec"
)

// buildSpec builds the OCI specification and looks up what that requires. It records the user.
func (d *containerDraft) buildSpec() (*specs.Spec, error) {
	sandbox := d.s.index.sandbox(d.sb).config
	sc := d.described.GetLinux().GetSecurityContext()
	in := spec.Input{
		Host:         d.handler.SpecHost,
		Container:    d.described,
		Sandbox:      sandbox,
		Image:        d.image.Config.Config,
		Root:         d.root,
		Hostname:     d.sb.Config().Hostname,
		IDs:          d.sb.Config().IDs,
		Mounts:       d.mounts,
		Volumes:      d.volumes,
		Files:        sandboxFiles(d.sb),
		CgroupsPath:  spec.CgroupsPath(d.sb.CgroupParent(), d.cr.id, d.s.o.SystemdCgroup),
		ProcessLabel: d.labels.Process,
		MountLabel:   d.labels.Mount,
	}
	var err error
	if in.User, err = lookUpUser(sc, in.Image.User, d.root); err != nil {
		return nil, err
	}
	d.record.imageUser = containerUser(in.User)
	if err := checkNamespaces(sc.GetNamespaceOptions()); err != nil {
		return nil, err
	}
	if in.Devices, err = resolveDevices(d.described.Devices, sc.GetPrivileged()); err != nil {
		return nil, err
	}
	if in.SeccompProfile, err = seccompFile(sc); err != nil {
		return nil, err
	}
	if in.Namespaces, err = containerNamespaces(d.sb, sc.GetNamespaceOptions()); err != nil {
		return nil, err
	}
	built, err := spec.Build(in)
	if err != nil {
		return nil, err
	}
	return built, d.s.inject(built, in.Host, d.described, sandbox)
}

// sandboxFiles returns the files that a sandbox gives its containers.
func sandboxFiles(sb *oci.Sandbox) spec.Files {
	files := spec.Files{
		Hosts:      filepath.Join(sb.Dir(), "hosts"),
		Hostname:   filepath.Join(sb.Dir(), "hostname"),
		ResolvConf: filepath.Join(sb.Dir(), "resolv.conf"),
		Shm:        sb.ShmDir(),
	}
	if sb.Config().HostIPC {
		files.Shm = "/dev/shm"
	}
	return files
}

// containerNamespaces returns the namespaces that the container joins: the sandbox's, and its
// shared PID namespace if the container asks for it.
func containerNamespaces(sb *oci.Sandbox, o *cri.NamespaceOption) (map[string]string, error) {
	const host = "host"
	ns := map[string]string{"network": host, "uts": host, "ipc": host}
	if !sb.Config().HostNetwork {
		ns["network"], ns["uts"] = sb.NetNS(), sb.NamespacePath("uts")
	}
	if !sb.Config().HostIPC {
		ns["ipc"] = sb.NamespacePath("ipc")
	}
	ns["user"] = sb.NamespacePath("user")
	switch o.GetPid() {
	case cri.NamespaceMode_NODE:
		ns["pid"] = host
	case cri.NamespaceMode_POD:
		switch {
		case sb.Config().SharedPID:
			ns["pid"] = sb.NamespacePath("pid")
		case sb.Config().HostPID:
			ns["pid"] = host
		case o == nil:
			// POD is the zero value: a client that sets nothing has not asked for it.
		default:
			return nil, fault.Invalid.Errorf("the container wants the PID namespace of sandbox %s, which has none", sb.ID())
		}
	}
	return ns, nil
}

// maxProfile limits the size of a seccomp profile, in bytes; real ones have
// some 20 KiB.
const maxProfile = 4 << 20

// seccompFile reads the Localhost profile that sc names, if it names one.
func seccompFile(sc *cri.LinuxContainerSecurityContext) ([]byte, error) {
	kind, file, err := spec.SeccompOf(sc)
	if err != nil || kind != cri.SecurityProfile_Localhost {
		return nil, err
	}
	f, err := regular.Open(file) // opening something else may block, and this stage has no limit
	if errors.Is(err, os.ErrNotExist) {
		return nil, fault.Invalid.Errorf("seccomp profile %s does not exist", file)
	}
	if errors.Is(err, regular.ErrOther) {
		return nil, fault.Invalid.Errorf("seccomp profile: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("open seccomp profile: %w", err)
	}
	defer f.Close()
	b, err := regular.ReadAll(f, maxProfile)
	if err != nil {
		return nil, fault.Invalid.Errorf("read seccomp profile: %w", err)
	}
	return b, nil
}

// containerUser returns the user of the first process in CRI's form.
func containerUser(u spec.User) *cri.ContainerUser {
	linux := &cri.LinuxContainerUser{Uid: int64(u.UID), Gid: int64(u.GID)}
	for _, g := range u.Groups {
		linux.SupplementalGroups = append(linux.SupplementalGroups, int64(g))
	}
	return &cri.ContainerUser{Linux: linux}
}
