package server

import (
	"context"
	"fmt"
	"maps"
	"os/exec"

	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/server/selinux"
	"github.com/crisp-cri/crisp/server/spec"
)

// The pods of a handler with a shim have a container of their own, which containerd's clients
// know as the pause container: the shim begins with it, and the sandbox (a virtual machine, another
// kernel) lives as long as it does. Its ID is the sandbox's, its root ours, and its annotations say
// what it is. The pod's network is there before it, since such sandboxes take over the addresses
// of the interfaces that they find. A shim that makes sandboxes itself, by its Sandbox API, needs no
// such container, and is given CRI's configuration of the pod.

// An Overhead is what the sandboxes of a handler take themselves.
type Overhead struct {
	MilliCPU int64 `json:"cpuMillis,omitempty"`
	Memory   int64 `json:"memory,omitempty"` // bytes
}

// program returns the path of the program that runs the handler's containers; "" for libcontainer.
func (h Handler) program() string {
	if h.Shim != nil {
		return h.Shim.Path
	}
	return h.Engine
}

// present returns an error of the kind fault.WrongState if the handler's program is not there.
func (h Handler) present() error {
	if h.program() == "" {
		return nil
	}
	if _, err := exec.LookPath(h.program()); err != nil {
		return fault.WrongState.Errorf("%w", err)
	}
	return nil
}

// sharesPID reports whether the containers of a pod that ask for its PID namespace get one.
func sharesPID(config *cri.PodSandboxConfig) bool {
	return config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetPid() == cri.NamespaceMode_POD
}

// startShim starts the sandbox's own container, if the handler has a shim.
func (s *Server) startShim(ctx context.Context, c *creation, sb *oci.Sandbox, rec *sandboxRecord) error {
	if sb.Config().Shim == nil {
		return nil
	}
	ctx, cancel := c.enter(ctx, "shim")
	defer cancel()
	h, err := s.handler(rec.handler)
	if err != nil {
		return err
	}
	annotations := sandboxAnnotations(h, sb, rec.config)
	root, pod := "", []byte(nil)
	if sb.Config().Shim.SandboxAPI {
		pod, err = podMessage(rec.config, annotations, sb.Config().Hostname)
	} else {
		root, err = shimRoot(ctx, sb, rec)
	}
	if err != nil {
		return err
	}
	ns := rec.config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	joined, err := containerNamespaces(sb, &cri.NamespaceOption{Network: ns.GetNetwork(), Pid: sandboxPID(ns), Ipc: ns.GetIpc()})
	if err != nil {
		return err
	}
	built, err := spec.BuildSandbox(spec.SandboxInput{
		Host: h.SpecHost, Sandbox: rec.config, Root: root, Program: oci.ShimProgram, Hostname: sb.Config().Hostname,
		Namespaces: joined, Files: sandboxFiles(sb), ProcessLabel: rec.labels.Process, MountLabel: rec.labels.Mount,
	})
	if err != nil {
		return err
	}
	built.Annotations = annotations
	return sb.StartShim(ctx, built, pod)
}

// shimRoot makes the root of a sandbox's own container.
func shimRoot(ctx context.Context, sb *oci.Sandbox, rec *sandboxRecord) (root string, err error) {
	if root, err = sb.MakeShimRoot(); err != nil || rec.labels.Mount == "" {
		return root, err
	}
	if err := selinux.Relabel(ctx, root, rec.labels.Mount, stillWanted(sb)); err != nil {
		return "", fmt.Errorf("label root of sandbox %s: %w", sb.ID(), err)
	}
	return root, nil
}

// podMessage is the configuration of a pod as the Sandbox API takes it: not with all of the pod's
// annotations, which may choose what runs it, but with those that the sandbox's own container would have.
func podMessage(config *cri.PodSandboxConfig, annotations map[string]string, hostname string) ([]byte, error) {
	pod := proto.CloneOf(config)
	pod.Annotations, pod.Hostname = annotations, hostname
	return proto.Marshal(pod)
}

// sandboxPID is the mode of the PID namespace of a sandbox's own container: the host's, or a new
// one, which others may join.
func sandboxPID(ns *cri.NamespaceOption) cri.NamespaceMode {
	if ns.GetPid() == cri.NamespaceMode_NODE {
		return cri.NamespaceMode_NODE
	}
	return cri.NamespaceMode_CONTAINER
}

// sandboxAnnotations returns the annotations of a sandbox's own container: those that containerd
// gives to its, and those of the pod that the handler lets through.
func sandboxAnnotations(h Handler, sb *oci.Sandbox, config *cri.PodSandboxConfig) map[string]string {
	all := map[string]string{}
	for key, value := range config.GetAnnotations() {
		if h.letsThrough(key) {
			all[key] = value
		}
	}
	maps.Copy(all, criAnnotations("sandbox", sb, config.GetMetadata()))
	if dir := config.GetLogDirectory(); dir != "" {
		all[criPrefix+"sandbox-log-directory"] = dir
	}
	for key, value := range spec.SizeAnnotations(config.GetLinux()) {
		all[criPrefix+key] = value
	}
	return all
}

// shimRefuses returns why a container of a handler with a shim cannot be as it is asked for.
func shimRefuses(h Handler, env [][]byte) error {
	if h.Shim != nil && env != nil {
		return fault.Invalid.Errorf("envs: a value is not UTF-8, and %s is given JSON", h.Shim.Path)
	}
	return nil
}

// handlerInfo describes a handler in the verbose status.
type handlerInfo struct {
	Kind     string    `json:"kind"` // libcontainer, OCI runtime or shim
	Program  string    `json:"program,omitempty"`
	Missing  string    `json:"missing,omitempty"`  // why the program cannot be run
	Version  string    `json:"version,omitempty"`  // as a shim reports it
	Features []string  `json:"features,omitempty"` // as the program reports them
	Options  string    `json:"options,omitempty"`  // the type of a shim's options
	Snapshot string    `json:"snapshot,omitempty"`
	Sandbox  string    `json:"sandboxer,omitempty"` // shim, if it makes sandboxes by the Sandbox API
	Overhead *Overhead `json:"overhead,omitempty"`
}

func (h Handler) info() handlerInfo {
	info := handlerInfo{Kind: "libcontainer", Program: h.program(), Version: h.Features.Version, Features: h.Features.Names()}
	switch {
	case h.Shim != nil:
		info.Kind, info.Options, info.Snapshot = "shim", h.Shim.OptionsType, "directory"
		if h.Shim.Mounts {
			info.Snapshot = "mounts"
		}
		if h.Shim.SandboxAPI {
			info.Sandbox = "shim"
		}
		if h.Overhead != (Overhead{}) {
			info.Overhead = &h.Overhead
		}
	case h.Engine != "":
		info.Kind = "OCI runtime"
	}
	if err := h.present(); err != nil {
		info.Missing = err.Error()
	}
	return info
}
