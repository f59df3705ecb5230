package server

import (
	"context"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/network"
	"github.com/crisp-cri/crisp/oci"
)

// PodSandboxStats returns a pod's resource usage.
//
// CRI: "If the pod sandbox does not exist, the call returns an error."
func (s *Server) PodSandboxStats(_ context.Context, req *cri.PodSandboxStatsRequest) (*cri.PodSandboxStatsResponse, error) {
	sb, err := s.runtime.Sandbox(req.PodSandboxId)
	if err != nil {
		return nil, err
	}
	return &cri.PodSandboxStatsResponse{Stats: s.sandboxStats(sb)}, nil
}

// sandboxStats reads the pod's cgroup, its network counters and its containers. What cannot be
// read, because the sandbox is being stopped, is left out.
func (s *Server) sandboxStats(sb *oci.Sandbox) *cri.PodSandboxStats {
	rec := s.index.sandbox(sb)
	linux := new(cri.LinuxPodSandboxStats)
	for _, c := range sb.Containers() {
		if isRunning(c) && !s.isHidden(c) {
			linux.Containers = append(linux.Containers, s.containerStats(c))
		}
	}
	if st, err := sb.Usage(); err == nil {
		linux.Cpu = s.cpuUsage(sb.ID(), st, sb.CreatedAt())
		if sb.State() == oci.SandboxRemoving {
			s.cpu.forget(sb.ID()) // the event that it is gone may be over
		}
		linux.Memory = memoryUsage(st)
		if st.Pids.Current == 0 { // a shim's processes may be elsewhere
			for _, c := range sb.Containers() {
				if of, err := c.Usage(); err == nil {
					st.Pids.Current += of.Pids.Current
				}
			}
		}
		linux.Process = &cri.ProcessUsage{Timestamp: st.At.UnixNano(), ProcessCount: value(st.Pids.Current)}
		linux.Io = &cri.IoUsage{Timestamp: st.At.UnixNano(), Psi: pressure(st.IO.PSI)}
	}
	linux.Network = s.networkUsage(sb)
	return &cri.PodSandboxStats{
		Attributes: &cri.PodSandboxAttributes{
			Id: sb.ID(), Metadata: rec.config.Metadata, Labels: rec.config.Labels, Annotations: rec.config.Annotations,
		},
		Linux: linux,
	}
}

// defaultInterface is the name that package network gives a pod's interface.
const defaultInterface = "eth0"

// networkUsage returns the counters of the pod's own interfaces; a pod on the host's network has
// none.
func (s *Server) networkUsage(sb *oci.Sandbox) *cri.NetworkUsage {
	if sb.Config().HostNetwork || sb.State() != oci.SandboxReady {
		return nil
	}
	list, err := s.interfaces.read(sb)
	if err != nil {
		return nil
	}
	return interfaceUsage(list)
}

// interfaceUsage includes the default interface in the list of interfaces, too. CRI's comment
// excludes it there, but the kubelet reports the list as all interfaces, as cAdvisor does.
func interfaceUsage(list []network.InterfaceStats) *cri.NetworkUsage {
	usage := &cri.NetworkUsage{Timestamp: time.Now().UnixNano()}
	for _, i := range list {
		iface := &cri.NetworkInterfaceUsage{
			Name: i.Name, RxBytes: value(i.RxBytes), RxErrors: value(i.RxErrors), TxBytes: value(i.TxBytes), TxErrors: value(i.TxErrors),
		}
		if i.Name == defaultInterface {
			usage.DefaultInterface = iface
		}
		usage.Interfaces = append(usage.Interfaces, iface)
	}
	return usage
}
