package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cyphar/filepath-securejoin/pathrs-lite"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/regular"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/server/cdi"
	"github.com/crisp-cri/crisp/server/hooks"
	"github.com/crisp-cri/crisp/server/spec"
)

// buildSpec builds the OCI specification and looks up what that requires. It records the user.
func (d *containerDraft) buildSpec(ctx context.Context) (*specs.Spec, error) {
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
		Resolve:      d.places.resolve,
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
	return built, d.s.inject(ctx, built, in.Host, d.described, sandbox)
}

func sandboxFiles(sb *oci.Sandbox) spec.Files {
	files := spec.Files{
		Hosts:      filepath.Join(sb.Dir(), "hosts"),
		Hostname:   filepath.Join(sb.Dir(), "hostname"),
		ResolvConf: filepath.Join(sb.Dir(), "resolv.conf"),
		Shm:        sb.ShmDir(),
	}
	if sb.Config().HostIPC {
		files.Shm = "/dev/shm"
		if _, err := os.Stat("/dev/mqueue"); err == nil {
			files.Queues = "/dev/mqueue"
		}
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
		case sb.Config().Shim != nil && sb.InitPid() > 0:
			ns["pid"] = fmt.Sprintf("/proc/%d/ns/pid", sb.InitPid())
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
	b, err := regular.ReadFile(file, maxProfile) // opening something else may block, and this stage has no limit
	if errors.Is(err, os.ErrNotExist) {
		return nil, fault.Invalid.Errorf("seccomp profile %s does not exist", file)
	}
	if err != nil {
		return nil, fault.Invalid.Errorf("seccomp profile: %w", err)
	}
	return b, nil
}

func containerUser(u spec.User) *cri.ContainerUser {
	linux := &cri.LinuxContainerUser{Uid: int64(u.UID), Gid: int64(u.GID)}
	for _, g := range u.Groups {
		linux.SupplementalGroups = append(linux.SupplementalGroups, int64(g))
	}
	return &cri.ContainerUser{Linux: linux}
}

// A Confiner knows the AppArmor profiles of this host.
type Confiner interface {
	// Check returns nil if a container can be confined by the profile, and fault.Invalid if no
	// profile of that name is loaded.
	Check(ctx context.Context, profile string) error
}

// checkProfile refuses a container whose AppArmor profile is not loaded, before the container is
// created: its start would fail with a bare kernel error.
func (s *Server) checkProfile(ctx context.Context, built *specs.Spec) error {
	profile := built.Process.ApparmorProfile
	switch {
	case profile == "":
		return nil
	case s.o.AppArmor == nil:
		return fault.Invalid.Errorf("AppArmor profile %q: AppArmor is not enabled on this host", profile)
	}
	return s.o.AppArmor.Check(ctx, profile)
}

// inject adds what files on this node configure: CDI devices, then the hooks of
// the hooks directories, in this order so that hooks see the container as it
// will be.
func (s *Server) inject(ctx context.Context, built *specs.Spec, h spec.Host, config *cri.ContainerConfig, sandbox *cri.PodSandboxConfig) error {
	var asked []string
	for _, d := range config.CDIDevices {
		asked = append(asked, d.Name)
	}
	names, err := cdi.Names(asked, config.Annotations)
	if err != nil {
		return err
	}
	if err := cdi.Inject(built, s.current.Load().CDISpecDirs, names, spec.BindsNodes(built, h)); err != nil {
		return err
	}
	annotations := map[string]string{}
	maps.Copy(annotations, sandbox.GetAnnotations())
	maps.Copy(annotations, config.Annotations)
	others, err := hooks.Inject(built, s.current.Load().HooksDirs, hooks.Container{
		Annotations: annotations,
		Command:     built.Process.Args[0],
		BindMounts:  slices.ContainsFunc(config.Mounts, func(m *cri.Mount) bool { return m.HostPath != "" }),
	})
	for _, other := range others {
		s.o.Log.WarnContext(ctx, "broken hook does not concern this container", "err", other)
	}
	return err
}

// annotate sets the annotations of a specification. A handler's OCI runtime or shim gets those that
// containerd and CRI-O pass to theirs, and only those of the pod's and the container's own
// annotations that the handler allows, because a runtime may change its behaviour by them. Hooks
// get all of the pod's and the container's, in the state on their stdin. Without a runtime and
// hooks none are passed: they can take 256 KiB. The container's annotations override the pod's.
func annotate(built *specs.Spec, h Handler, sb *oci.Sandbox, pod *sandboxRecord, rec *containerRecord) {
	asked := map[string]string{}
	maps.Copy(asked, pod.config.GetAnnotations())
	maps.Copy(asked, rec.config.GetAnnotations())
	switch {
	case h.program() != "":
		maps.DeleteFunc(asked, func(key, _ string) bool { return !h.letsThrough(key) })
		maps.Copy(asked, containerAnnotations(sb, pod, rec))
	case built.Hooks == nil:
		return
	default:
		// libcontainer would set properties of the container's scope from these.
		maps.DeleteFunc(asked, func(key, _ string) bool { return strings.HasPrefix(key, "org.systemd.property.") })
	}
	built.Annotations = asked
}

// criPrefix is the prefix of the annotations that containerd adds to its specifications.
const criPrefix = "io.kubernetes.cri."

func containerAnnotations(sb *oci.Sandbox, pod *sandboxRecord, rec *containerRecord) map[string]string {
	all := criAnnotations("container", sb, pod.config.GetMetadata())
	all[criPrefix+"container-name"] = rec.config.GetMetadata().GetName()
	all[criPrefix+"image-name"] = rec.image().GetImage()
	return all
}

// criAnnotations returns the annotations that containers and sandboxes share.
func criAnnotations(kind string, sb *oci.Sandbox, of *cri.PodSandboxMetadata) map[string]string {
	return map[string]string{
		criPrefix + "container-type": kind, criPrefix + "sandbox-id": sb.ID(), criPrefix + "sandbox-name": of.GetName(),
		criPrefix + "sandbox-namespace": of.GetNamespace(), criPrefix + "sandbox-uid": of.GetUid(),
	}
}

// letsThrough reports whether the handler passes an annotation to its OCI runtime.
func (h Handler) letsThrough(key string) bool {
	for _, pattern := range h.Annotations {
		// As in path.Match, "*" matches any characters but "/".
		if ok, err := path.Match(pattern, key); ok && err == nil {
			return true
		}
	}
	return false
}

// maxAccounts limits the size of an image's /etc/passwd and /etc/group, in bytes.
// They are read line by line.
const maxAccounts = 10 << 20

// lookUpUser resolves the user of a container by the account files of its root file system.
func lookUpUser(sc *cri.LinuxContainerSecurityContext, imageUser, root string) (spec.User, error) {
	passwd, err := openInRoot(root, "/etc/passwd")
	if err != nil {
		return spec.User{}, err
	}
	defer passwd.Close()
	group, err := openInRoot(root, "/etc/group")
	if err != nil {
		return spec.User{}, err
	}
	defer group.Close()
	return spec.ResolveUser(sc, imageUser, passwd, group)
}

// openInRoot opens a file of an image. Symlinks cannot lead out of root, and anything but a
// regular file is an error (a pipe would block). A missing file reads as empty.
func openInRoot(root, name string) (io.ReadCloser, error) {
	handle, err := pathrs.OpenInRoot(root, name)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return io.NopCloser(bytes.NewReader(nil)), nil
	}
	if err != nil {
		return nil, fmt.Errorf("open %s of the image: %w", name, err)
	}
	defer handle.Close()
	info, err := handle.Stat()
	if err != nil {
		return nil, fmt.Errorf("look at %s of the image: %w", name, err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxAccounts {
		return nil, fault.Invalid.Errorf("%s of the image is not a regular file of reasonable size: %s, %d bytes", name, info.Mode().Type(), info.Size())
	}
	f, err := pathrs.Reopen(handle, unix.O_RDONLY)
	if err != nil {
		return nil, fmt.Errorf("open %s of the image: %w", name, err)
	}
	return f, nil
}
