package server

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/server/selinux"
	"github.com/crisp-cri/crisp/server/spec"
)

// buildSpec looks up what the translation needs to know and translates. It
// notes the user in rec.
func (s *Server) buildSpec(id string, host spec.Host, sb *oci.Sandbox, rec *containerRecord, img v1.ImageConfig, root string, mounts []spec.Mount, volumes []spec.Volume, labels selinux.Labels) (*specs.Spec, error) {
	sandbox := s.index.sandbox(sb).config
	sc := rec.config.GetLinux().GetSecurityContext()
	user, err := lookUpUser(sc, img.User, root)
	if err != nil {
		return nil, err
	}
	rec.imageUser = containerUser(user)
	if err := checkNamespaces(sc.GetNamespaceOptions()); err != nil {
		return nil, err
	}
	devices, err := resolveDevices(rec.config.Devices, sc.GetPrivileged())
	if err != nil {
		return nil, err
	}
	profile, err := seccompFile(sc)
	if err != nil {
		return nil, err
	}
	namespaces, err := containerNamespaces(sb, sc.GetNamespaceOptions())
	if err != nil {
		return nil, err
	}
	hostname := sb.Config().Hostname
	files := spec.Files{
		Hosts:      filepath.Join(sb.Dir(), "hosts"),
		Hostname:   filepath.Join(sb.Dir(), "hostname"),
		ResolvConf: filepath.Join(sb.Dir(), "resolv.conf"),
		Shm:        sb.ShmDir(),
	}
	if sb.Config().HostIPC {
		files.Shm = "/dev/shm"
	}
	built, err := spec.Build(spec.Input{
		Host:           host,
		Container:      rec.config,
		Sandbox:        sandbox,
		Image:          img,
		Root:           root,
		User:           user,
		Hostname:       hostname,
		Namespaces:     namespaces,
		IDs:            sb.Config().IDs,
		Mounts:         mounts,
		Volumes:        volumes,
		Files:          files,
		Devices:        devices,
		CgroupsPath:    spec.CgroupsPath(sb.CgroupParent(), id, s.o.SystemdCgroup),
		SeccompProfile: profile,
		ProcessLabel:   labels.Process,
		MountLabel:     labels.Mount,
	})
	if err != nil {
		return nil, err
	}
	return built, s.inject(built, rec.config, sandbox)
}

// containerNamespaces says what the container joins: the sandbox's namespaces,
// and its PID namespace if that is shared and the container wants it.
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
			// POD is the zero value: who says nothing has not asked for it.
		default:
			return nil, fault.Invalid.Errorf("the container wants the PID namespace of sandbox %s, which has none", sb.ID())
		}
	}
	return ns, nil
}

// maxProfile bounds a seccomp profile, in bytes; real ones have some 20 KiB.
const maxProfile = 4 << 20

// seccompFile reads the Localhost profile that sc names, if it does.
func seccompFile(sc *cri.LinuxContainerSecurityContext) ([]byte, error) {
	kind, file, err := spec.SeccompOf(sc)
	if err != nil || kind != cri.SecurityProfile_Localhost {
		return nil, err
	}
	f, err := os.Open(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fault.Invalid.Errorf("seccomp profile %s is not there", file)
	}
	if err != nil {
		return nil, fmt.Errorf("open seccomp profile: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxProfile))
	if err != nil {
		return nil, fmt.Errorf("read seccomp profile: %w", err)
	}
	return b, nil
}

// containerUser is who the first process runs as, as CRI's status has it.
func containerUser(u spec.User) *cri.ContainerUser {
	linux := &cri.LinuxContainerUser{Uid: int64(u.UID), Gid: int64(u.GID)}
	for _, g := range u.Groups {
		linux.SupplementalGroups = append(linux.SupplementalGroups, int64(g))
	}
	return &cri.ContainerUser{Linux: linux}
}
