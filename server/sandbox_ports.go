package server

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/rootless"
	"github.com/crisp-cri/crisp/oci"
)

// forwards returns the host ports of a sandbox with the addresses of rec. A pod of the host's network
// listens itself; so it does for addresses of the machine, which are not there.
func forwards(sb *oci.Sandbox, rec *sandboxRecord) (list []rootless.Forward, err error) {
	to := rootless.Guest
	if !sb.Config().HostNetwork {
		to = netip.Addr{}
		for _, text := range slices.Backward(rec.addresses()) {
			if ip, err := netip.ParseAddr(text); err == nil && ip.Is4() {
				to = ip
			}
		}
	}
	for _, pm := range rec.config.GetPortMappings() {
		if pm.HostPort == 0 {
			continue // see networkPod
		}
		f := rootless.Forward{Protocol: strings.ToLower(pm.Protocol.String()), HostIP: netip.IPv4Unspecified(), HostPort: pm.HostPort, GuestIP: to, GuestPort: pm.ContainerPort}
		if ip, err := netip.ParseAddr(pm.HostIp); err == nil && !ip.IsUnspecified() {
			f.HostIP = ip.Unmap()
		}
		if sb.Config().HostNetwork {
			f.GuestPort = pm.HostPort
		}
		if !f.HostIP.Is4() || !to.IsValid() || pm.Protocol == cri.Protocol_SCTP {
			return nil, fault.Invalid.Errorf("host port %d, %s, of %s: without root there are only TCP and UDP over IPv4", pm.HostPort, pm.Protocol, f.HostIP)
		}
		list = append(list, f)
	}
	return list, nil
}

// openPorts makes the host ports of a new sandbox lead to it.
func (s *Server) openPorts(ctx context.Context, sb *oci.Sandbox, rec *sandboxRecord) ([]rootless.Forward, error) {
	if s.o.HostPorts == nil {
		return nil, nil
	}
	list, err := forwards(sb, rec)
	if err != nil {
		return nil, err
	}
	return list, s.o.HostPorts.Add(ctx, list)
}

// closePorts makes the host ports of a sandbox lead nowhere.
func (s *Server) closePorts(ctx context.Context, sb *oci.Sandbox, rec *sandboxRecord) error {
	if s.o.HostPorts == nil {
		return nil
	}
	ports, _ := forwards(sb, rec) // it has none that could not be opened
	if err := s.o.HostPorts.Remove(ctx, ports); err != nil {
		return fmt.Errorf("close host ports: %w", err)
	}
	return nil
}

// restorePorts makes the host ports lead to the sandboxes that are ready: slirp4netns may be new, or
// crispd have ended before it closed some.
func (s *Server) restorePorts(ctx context.Context) {
	if s.o.HostPorts == nil {
		return
	}
	var want []rootless.Forward
	for _, sb := range s.runtime.Sandboxes() {
		if sb.State() == oci.SandboxReady {
			list, _ := forwards(sb, s.index.sandbox(sb)) // it has none that could not be opened
			want = append(want, list...)
		}
	}
	if err := s.o.HostPorts.Set(ctx, want); err != nil {
		s.log.WarnContext(ctx, "host ports not restored", "err", err)
	}
}
