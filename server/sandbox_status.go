package server

import (
	"context"
	"encoding/json"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci"
)

// PodSandboxStatus returns everything CRI reports about a sandbox and its containers, from one
// time.
//
// CRI: "If the PodSandbox is not present, returns an error": NotFound, the only code that tells
// the kubelet that the sandbox does not exist.
func (s *Server) PodSandboxStatus(_ context.Context, req *cri.PodSandboxStatusRequest) (*cri.PodSandboxStatusResponse, error) {
	sb, err := s.runtime.Sandbox(req.PodSandboxId)
	if err != nil {
		return nil, err
	}
	if s.sandboxes.isHidden(sb.ID()) {
		return nil, fault.NotFound.Errorf("no sandbox %q", req.PodSandboxId)
	}
	// The time comes first: a change after it shows in a later status.
	resp := &cri.PodSandboxStatusResponse{Timestamp: time.Now().UnixNano()}
	resp.Status = s.sandboxStatus(sb)
	resp.ContainersStatuses = s.containerStatuses(sb)
	if req.Verbose {
		info, err := json.Marshal(map[string]any{
			"netns":           sb.NetNS(),
			"cgroupParent":    sb.CgroupParent(),
			"directory":       sb.Dir(),
			"phase":           sb.State().String(), // not "state", as in ContainerStatus
			"addresses":       s.index.sandbox(sb).addresses(),
			"runtimeHandler":  s.index.sandbox(sb).handler,
			"runtimeSpec":     podSpec(sb, s.index.sandbox(sb).config),
			"config":          s.index.sandbox(sb).config,
			"resourcesUpdate": s.index.sandbox(sb).resources,
			"startup":         s.startupOf(sb, nil),
			"pulls":           s.waitsFor(sb),
		})
		if err != nil {
			return nil, fault.Internal.Errorf("encode info of sandbox %s: %w", sb.ID(), err)
		}
		resp.Info = map[string]string{"info": string(info)}
	}
	return resp, nil
}

// podSpec describes a pod as runtimes do whose pods are containers. Tools look there for the
// paths of its namespaces; one that is not listed is the host's, or private to each container.
func podSpec(sb *oci.Sandbox, config *cri.PodSandboxConfig) *specs.Spec {
	spec := &specs.Spec{
		Version: specs.Version, Hostname: config.GetHostname(), Annotations: config.GetAnnotations(),
		Linux: &specs.Linux{CgroupsPath: sb.CgroupParent(), Sysctl: config.GetLinux().GetSysctls()},
	}
	for _, ns := range []struct {
		kind   string
		ofSpec specs.LinuxNamespaceType
	}{
		{"pid", specs.PIDNamespace}, {"ipc", specs.IPCNamespace}, {"uts", specs.UTSNamespace},
		{"user", specs.UserNamespace}, {"net", specs.NetworkNamespace},
	} {
		if path := sb.NamespacePath(ns.kind); path != "" {
			spec.Linux.Namespaces = append(spec.Linux.Namespaces, specs.LinuxNamespace{Type: ns.ofSpec, Path: path})
		}
	}
	return spec
}

// sandboxStatus returns the CRI status of sb. The namespace options are returned as they were
// requested: the kubelet recreates the pod if the network mode differs.
func (s *Server) sandboxStatus(sb *oci.Sandbox) *cri.PodSandboxStatus {
	rec := s.index.sandbox(sb)
	ns := rec.config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	if ns == nil {
		ns = new(cri.NamespaceOption)
	}
	return &cri.PodSandboxStatus{
		Id:             sb.ID(),
		Metadata:       rec.config.Metadata,
		State:          sandboxState(sb.State()),
		CreatedAt:      sb.CreatedAt().UnixNano(),
		Network:        networkStatus(rec),
		Linux:          &cri.LinuxPodSandboxStatus{Namespaces: &cri.Namespace{Options: ns}},
		Labels:         rec.config.Labels,
		Annotations:    rec.config.Annotations,
		RuntimeHandler: rec.handler,
	}
}
