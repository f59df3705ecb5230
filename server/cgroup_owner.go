package server

import (
	"maps"
	"os"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/server/cadvisor"
)

var _ cadvisor.Source = cgroupOwners{}

// cgroupOwners implements cadvisor.Source for a Server; the separate type keeps the methods for
// cAdvisor out of the CRI method set.
type cgroupOwners struct{ *Server }

// RegisterCAdvisor registers on g the service that tells cAdvisor which container or sandbox a
// cgroup belongs to. g must have been made with AuxServerOptions.
func RegisterCAdvisor(g grpc.ServiceRegistrar, s *Server) { cadvisor.Register(g, s.cadvisor) }

// Version implements cadvisor.Source.
func (o cgroupOwners) Version() string { return o.o.Version }

// sandboxImage stands for the image of a sandbox, which has none: dashboards drop series without
// an image, such as those of the cgroups above containers.
const sandboxImage = "crisp/sandbox"

// Object implements cadvisor.Source. It also finds objects that no list shows yet, because their
// cgroups exist before they are listed.
func (o cgroupOwners) Object(id string) (cadvisor.Object, error) {
	if c, err := o.runtime.Container(id); err == nil && c.ID() == id {
		return o.container(c), nil
	}
	sb, err := o.runtime.Sandbox(id)
	if err != nil || sb.ID() != id {
		return cadvisor.Object{}, fault.NotFound.Errorf("no container and no sandbox %q", id)
	}
	config := o.index.sandbox(sb).config
	return cadvisor.Object{
		ID: id, Labels: config.GetLabels(), Image: sandboxImage, CreatedAt: sb.CreatedAt(),
		Spec: &specs.Spec{
			Version: specs.Version, Process: &specs.Process{Cwd: "/"}, Root: &specs.Root{Path: "/"},
			Annotations: criAnnotations("sandbox", sb, config.GetMetadata()),
		},
		Pid: sb.InitPid(),
	}, nil
}

func (o cgroupOwners) container(c *oci.Container) cadvisor.Object {
	rec, st, built := o.index.container(c), c.Status(), *c.Config().Spec
	if sb, err := o.runtime.Sandbox(c.SandboxID()); err == nil {
		all := map[string]string{}
		maps.Copy(all, built.Annotations)
		maps.Copy(all, containerAnnotations(sb, o.index.sandbox(sb), rec))
		built.Annotations = all
	}
	object := cadvisor.Object{
		ID: c.ID(), Sandbox: c.SandboxID(), Labels: rec.config.GetLabels(), Image: o.containerImage(rec).Image,
		CreatedAt: c.CreatedAt(), Spec: &built, Pid: st.Pid,
	}
	if st.State == oci.Exited {
		object.Exit = &cadvisor.Exit{At: st.FinishedAt, Code: uint32(st.ExitCode)}
	}
	return object
}

// Sandboxes implements cadvisor.Source.
func (o cgroupOwners) Sandboxes() []string {
	var ids []string
	for _, sb := range o.runtime.Sandboxes() {
		ids = append(ids, sb.ID())
	}
	return ids
}

// Inmates implements cadvisor.Source.
func (o cgroupOwners) Inmates(sandbox string) []int {
	sb, err := o.runtime.Sandbox(sandbox)
	if err != nil || sb.State() != oci.SandboxReady || !sb.HasStandIn() {
		return nil
	}
	if sb.Config().HostNetwork {
		return []int{nodePid()}
	}
	var pids []int
	for _, c := range sb.Containers() {
		if pid := c.Status().Pid; pid != 0 {
			pids = append(pids, pid)
		}
	}
	return pids
}

// nodePid returns the PID of a process in the host's network namespace: 1 if init is in our
// network namespace, since init never ends, otherwise our own PID.
func nodePid() int {
	init, err := os.Readlink("/proc/1/ns/net")
	if own, oerr := os.Readlink("/proc/self/ns/net"); err == nil && oerr == nil && init == own {
		return 1
	}
	return os.Getpid()
}

// StandIn implements cadvisor.Source. A sandbox that is gone has none.
func (o cgroupOwners) StandIn(sandbox string, present bool) error {
	sb, err := o.runtime.Sandbox(sandbox)
	switch {
	case err != nil:
		return nil
	case !present:
		return sb.RemoveStandIn()
	}
	if err := sb.RenewStandIn(); fault.KindOf(err) != fault.WrongState {
		return err
	}
	return nil // it is being stopped
}
