package server

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"strings"
	"unicode"

	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/logctx"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/oci"
)

// RunPodSandbox creates a sandbox and returns its ID when it is ready.
//
// CRI: "Runtimes must ensure the sandbox is in the ready state on success." The work goes on
// without the caller; a repeated request joins it (see creations).
func (s *Server) RunPodSandbox(ctx context.Context, req *cri.RunPodSandboxRequest) (*cri.RunPodSandboxResponse, error) {
	if err := s.checkSandbox(req); err != nil {
		return nil, err
	}
	name := sandboxName(req.Config.Metadata)
	// Another pod of this name, or another attempt: the pod was deleted, or its caller is lost.
	pod := strings.Join([]string{req.Config.Metadata.Name, req.Config.Metadata.Namespace, ""}, "_")
	s.sandboxes.giveWay(func(c *creation) bool { return c.name != name && strings.HasPrefix(c.name, pod) })
	same := &cri.RunPodSandboxRequest{RuntimeHandler: req.RuntimeHandler}
	id, err := s.sandboxes.do(ctx, name, same, func(ctx context.Context, c *creation) error {
		return s.runSandbox(ctx, c, req)
	})
	if err != nil {
		return nil, err
	}
	return &cri.RunPodSandboxResponse{PodSandboxId: id}, nil
}

// checkSandbox refuses requests from which no sandbox can be created.
func (s *Server) checkSandbox(req *cri.RunPodSandboxRequest) error {
	m := req.GetConfig().GetMetadata()
	if m.GetName() == "" || m.GetNamespace() == "" || m.GetUid() == "" {
		return fault.Invalid.Errorf("sandbox config has no complete metadata: name %q, namespace %q, uid %q", m.GetName(), m.GetNamespace(), m.GetUid())
	}
	if err := checkNames(map[string]string{"name": m.GetName(), "namespace": m.GetNamespace(), "uid": m.GetUid()}); err != nil {
		return fmt.Errorf("metadata: %w", err)
	}
	h, err := s.handler(req.RuntimeHandler)
	if err != nil {
		return err
	}
	if err := checkText(req.Config); err != nil {
		return fmt.Errorf("sandbox %s: %w", m.Name, err)
	}
	sc := req.Config.GetLinux().GetSecurityContext()
	if sc.GetRunAsGroup() != nil && sc.GetRunAsUser() == nil {
		return fault.Invalid.Errorf("sandbox %s: run_as_group is given without run_as_user", m.Name)
	}
	if err := checkNamespaces(sc.GetNamespaceOptions()); err != nil {
		return fmt.Errorf("sandbox %s: %w", m.Name, err)
	}
	if opt := sc.GetNamespaceOptions(); opt.GetPid() == cri.NamespaceMode_TARGET {
		return fault.Invalid.Errorf("sandbox %s: its PID namespace cannot be another container's", m.Name)
	}
	if err := checkPorts(req.Config); err != nil {
		return fmt.Errorf("sandbox %s: %w", m.Name, err)
	}
	if sc.GetNamespaceOptions().GetNetwork() == cri.NamespaceMode_POD { // the node's network has no limits
		if err := checkBandwidth(req.Config); err != nil {
			return fmt.Errorf("sandbox %s: %w", m.Name, err)
		}
	}
	if ids, err := userNamespace(sc.GetNamespaceOptions()); err == nil && ids != nil && h.NoUserNS != nil {
		return fault.Invalid.Errorf("sandbox %s: handler %q: %w", m.Name, req.RuntimeHandler, h.NoUserNS)
	}
	if err := h.present(); err != nil && h.Shim != nil {
		return fmt.Errorf("sandbox %s: shim of handler %q: %w", m.Name, req.RuntimeHandler, err)
	}
	return nil
}

// checkText refuses text that cannot appear in the files made from it, and a log directory
// relative to our working directory.
func checkText(config *cri.PodSandboxConfig) error {
	dns := config.GetDnsConfig()
	for field, list := range map[string][]string{
		"hostname": {config.Hostname}, "dns_config.servers": dns.GetServers(), "dns_config.searches": dns.GetSearches(), "dns_config.options": dns.GetOptions(),
	} {
		for _, text := range list {
			if strings.ContainsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }) {
				return fault.Invalid.Errorf("%s %q has white space or control characters", field, text)
			}
		}
	}
	if dir := config.LogDirectory; dir != "" {
		if !filepath.IsAbs(dir) {
			return fault.Invalid.Errorf("log_directory %.200q is not absolute", dir)
		}
		return checkPath("log_directory", dir)
	}
	return nil
}

// checkNamespaces refuses namespace modes that are not supported.
func checkNamespaces(o *cri.NamespaceOption) error {
	if o.GetNetwork() != cri.NamespaceMode_POD && o.GetNetwork() != cri.NamespaceMode_NODE {
		return fault.Invalid.Errorf("network namespace mode %s is neither POD nor NODE", o.GetNetwork())
	}
	if o.GetIpc() != cri.NamespaceMode_POD && o.GetIpc() != cri.NamespaceMode_NODE {
		return fault.Invalid.Errorf("IPC namespace mode %s is neither POD nor NODE", o.GetIpc())
	}
	if _, ok := cri.NamespaceMode_name[int32(o.GetPid())]; !ok {
		return fault.Invalid.Errorf("PID namespace mode %d is not known", o.GetPid())
	}
	_, err := userNamespace(o)
	return err
}

// repeatedSandbox returns what the repetition of a request whose answer was lost has in common with
// it: all but the annotations, since plugins add some to the pod during ADD.
func repeatedSandbox(config *cri.PodSandboxConfig) *cri.PodSandboxConfig {
	same := proto.CloneOf(config)
	same.Annotations = nil
	return same
}

// sameSandbox answers a repeated request with the sandbox that the first one created.
func (s *Server) sameSandbox(c *creation, sb *oci.Sandbox, req *cri.RunPodSandboxRequest) error {
	rec := s.index.sandbox(sb)
	switch {
	case !proto.Equal(repeatedSandbox(rec.config), repeatedSandbox(req.Config)) || rec.handler != req.RuntimeHandler:
		return fault.Exists.Errorf("sandbox name %s is taken by sandbox %s with another configuration", c.name, sb.ID())
	case sb.State() != oci.SandboxReady:
		return fault.Exists.Errorf("sandbox name %s is taken by sandbox %s, which is %s", c.name, sb.ID(), sb.State())
	}
	c.id, c.found = sb.ID(), true
	return nil
}

// runSandbox creates the sandbox of a creation. If a step fails, the steps before are undone; a
// sandbox that cannot be removed stays, as not ready, for the kubelet to remove.
func (s *Server) runSandbox(ctx context.Context, c *creation, req *cri.RunPodSandboxRequest) (err error) {
	if sb, ok := s.runtime.SandboxByName(c.name); ok {
		return s.sameSandbox(c, sb, req)
	}
	ctx = logctx.With(ctx, "sandbox", c.id)
	var steps undo.Stack
	defer steps.RunIf(&err)

	rec := &sandboxRecord{config: req.Config, handler: req.RuntimeHandler}
	if rec.labels, err = s.podLabels(c.id, req.Config); err != nil {
		return fmt.Errorf("sandbox %s: %w", req.Config.Metadata.Name, err)
	}
	steps.Add("SELinux level", func() error { s.o.SELinux.Release(c.id); return nil })
	config, err := s.sandboxConfig(c, rec)
	if err != nil {
		return err
	}
	if dir := req.Config.LogDirectory; dir != "" {
		if err := makeDir(dir); err != nil {
			return fmt.Errorf("make log_directory: %w", err)
		}
	}

	stepCtx, cancel := c.enter(ctx, "namespaces")
	defer cancel()
	sb, err := s.runtime.CreateSandbox(stepCtx, config)
	if err != nil {
		return fmt.Errorf("make sandbox: %w", err)
	}
	c.discard = func(ctx context.Context) error { return s.discardSandbox(ctx, sb) }
	steps.AddContext(ctx, "sandbox", c.discard)
	if err := makeFiles(ctx, sb, rec, config.Hostname); err != nil {
		return err
	}
	if !config.HostNetwork {
		if rec, err = s.attachNetwork(ctx, c, sb, rec); err != nil {
			return err
		}
	}
	ports, err := s.openPorts(ctx, sb, rec)
	if err != nil {
		return err
	}
	if len(ports) > 0 {
		steps.AddContext(ctx, "host ports", func(ctx context.Context) error { return s.o.HostPorts.Remove(ctx, ports) })
	}
	if err := s.startShim(ctx, c, sb, rec); err != nil {
		return err
	}
	extra, err := rec.encode()
	if err != nil {
		return err
	}
	stepCtx, cancel = c.enter(ctx, "plugins")
	defer cancel()
	turn := s.plugins.Turn()
	defer turn.End()
	if err := s.notifyRun(stepCtx, turn, pluginPod(sb, rec), &steps); err != nil {
		return err
	}
	return sb.Ready(extra)
}

// makeFiles writes the files that a sandbox provides to its containers, with the pod's labels.
func makeFiles(ctx context.Context, sb *oci.Sandbox, rec *sandboxRecord, hostname string) error {
	if err := writeFiles(sb.Dir(), rec.config, hostname); err != nil {
		return fmt.Errorf("write files of sandbox: %w", err)
	}
	if err := labelFiles(ctx, sb, rec.labels); err != nil {
		return fmt.Errorf("label files of sandbox: %w", err)
	}
	return nil
}

// attachNetwork attaches the sandbox of a creation and returns rec with its addresses.
func (s *Server) attachNetwork(ctx context.Context, c *creation, sb *oci.Sandbox, rec *sandboxRecord) (*sandboxRecord, error) {
	ctx, cancel := c.enter(ctx, "cni")
	defer cancel()
	result, err := s.networkOf(rec.handler).Attach(ctx, networkPod(sb, rec))
	if err != nil && ctx.Err() == nil {
		// A sandbox that no caller waits for may have the host port, or the last address.
		taken := errors.Is(err, fault.Exists)
		way := s.sandboxes.giveWay(func(o *creation) bool { return o != c && (taken || o.hungUp) })
		if len(way) > 0 && s.sandboxes.await(ctx, way) == nil {
			var again error
			if result, again = s.networkOf(rec.handler).Attach(ctx, networkPod(sb, rec)); taken || !errors.Is(again, fault.Exists) {
				err = again // otherwise the second may have met what the first left
			}
		}
	}
	if errors.Is(err, fault.Exists) {
		// Another pod may have the host port, say. AlreadyExists would tell the caller that this
		// sandbox exists.
		return nil, fault.Unavailable.Errorf("attach network: %v", err)
	}
	if err != nil {
		return nil, fmt.Errorf("attach network: %w", err)
	}
	return &sandboxRecord{config: rec.config, handler: rec.handler, labels: rec.labels, ips: addresses(result.IPs)}, nil
}

// sandboxConfig translates the request for oci.
func (s *Server) sandboxConfig(c *creation, rec *sandboxRecord) (oci.SandboxConfig, error) {
	linux := rec.config.GetLinux()
	ns := linux.GetSecurityContext().GetNamespaceOptions()
	config := oci.SandboxConfig{
		ID: c.id, Name: c.name,
		Hostname:    rec.config.Hostname,
		HostNetwork: ns.GetNetwork() == cri.NamespaceMode_NODE,
		HostIPC:     ns.GetIpc() == cri.NamespaceMode_NODE,
		HostPID:     ns.GetPid() == cri.NamespaceMode_NODE,
		SharedPID:   sharesPID(rec.config),
		Sysctls:     podSysctls(linux),
		Label:       rec.labels.Process,
		FileLabel:   s.o.SELinux.Shared(),
		MountLabel:  rec.labels.Mount,
	}
	if !config.HostNetwork { // else there are no devices of the pod's own, and oci refuses theirs
		_, config.Sysctls = oci.DeviceSysctls(config.Sysctls)
	}
	h, err := s.handler(rec.handler)
	if err != nil {
		return config, err
	}
	if config.Shim = h.Shim; h.Shim != nil {
		config.SharedPID = false // the namespace of the sandbox's own container is shared
	}
	if config.IDs, err = userNamespace(ns); err != nil {
		return config, err
	}
	if config.CgroupParent, err = cgroupParent(linux.GetCgroupParent(), s.o.SystemdCgroup); err != nil {
		return config, err
	}
	// CRI: "Hostname could only be empty when the pod network namespace is NODE." Users of
	// crictl leave it out nevertheless; they get the node's.
	if config.Hostname == "" || config.HostNetwork {
		if config.Hostname, err = os.Hostname(); err != nil {
			return config, fmt.Errorf("read host name: %w", err)
		}
	}
	config.Extra, err = rec.encode()
	return config, err
}

// cgroupParent translates CRI's cgroup parent, which is in cgroupfs syntax, into an absolute
// path or, with the systemd driver, into the name of the slice, its last element.
func cgroupParent(parent string, systemd bool) (string, error) {
	if parent == "" {
		return "", nil
	}
	if strings.Contains(parent, "\n") { // cgroups(7): a name cannot contain one
		return "", fault.Invalid.Errorf("cgroup_parent %q has a line feed", parent)
	}
	if err := checkPath("cgroup_parent", parent); err != nil {
		return "", err
	}
	slice := strings.HasSuffix(parent, ".slice")
	switch {
	case systemd && !slice:
		return "", fault.Invalid.Errorf("cgroup parent %q is not a slice, but the cgroup driver is systemd", parent)
	case systemd:
		return path.Base(parent), nil
	case slice:
		return "", fault.Invalid.Errorf("cgroup parent %q is a slice of systemd, but the cgroup driver is cgroupfs", parent)
	}
	return path.Join("/", parent), nil
}

// discardSandbox removes a sandbox that no caller will get.
func (s *Server) discardSandbox(ctx context.Context, sb *oci.Sandbox) error {
	ready := sb.State() != oci.SandboxCreating
	if err := s.stopSandbox(ctx, sb); err != nil {
		return err
	}
	if !ready {
		return sb.Remove(ctx) // it has no containers, and plugins have forgotten it
	}
	return s.removeSandbox(ctx, sb)
}

// writeFiles writes the files that the sandbox provides to its containers.
//
// Without a DNS configuration they get the node's, see remoteResolvConf. An empty configuration
// is obeyed: the kubelet itself names the node's servers when it wants them.
func writeFiles(dir string, config *cri.PodSandboxConfig, hostname string) error {
	host := config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork() == cri.NamespaceMode_NODE
	resolv, err := resolvConf(config.DnsConfig, host)
	if err != nil {
		return err
	}
	hosts, err := readIfThere("/etc/hosts")
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		"resolv.conf": resolv, "hosts": hosts, "hostname": []byte(hostname + "\n"),
	} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, content, 0o644); err != nil {
			return err
		}
		// The image's user must be able to read it, whatever crispd's umask is.
		if err := os.Chmod(file, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func resolvConf(dns *cri.DNSConfig, hostNetwork bool) ([]byte, error) {
	switch {
	case dns == nil && hostNetwork:
		return readIfThere("/etc/resolv.conf")
	case dns == nil:
		return remoteResolvConf("/etc/resolv.conf", "/run/systemd/resolve/resolv.conf")
	}
	var b strings.Builder
	if len(dns.Searches) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(dns.Searches, " "))
	}
	for _, server := range dns.Servers {
		fmt.Fprintf(&b, "nameserver %s\n", server)
	}
	if len(dns.Options) > 0 {
		fmt.Fprintf(&b, "options %s\n", strings.Join(dns.Options, " "))
	}
	return []byte(b.String()), nil
}

// remoteResolvConf returns the content of the file node for a pod with its own network. If node
// names the stub of systemd-resolved on the node's loopback, which the pod cannot reach, it
// returns the content of behind, which lists resolved's upstream servers
// (systemd-resolved.service(8)).
func remoteResolvConf(node, behind string) ([]byte, error) {
	own, err := readIfThere(node)
	if err != nil || !namesLoopbackAlone(own) {
		return own, err
	}
	upstream, err := readIfThere(behind)
	if err != nil || len(upstream) == 0 || namesLoopbackAlone(upstream) {
		return own, err
	}
	return upstream, nil
}

// namesLoopbackAlone reports whether a resolv.conf(5) has name servers, all of them on the
// loopback.
func namesLoopbackAlone(resolv []byte) bool {
	some := false
	for line := range strings.Lines(string(resolv)) {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] != "nameserver" {
			continue
		}
		addr, err := netip.ParseAddr(words[1])
		if err != nil || !addr.Unmap().IsLoopback() {
			return false
		}
		some = true
	}
	return some
}

func readIfThere(file string) ([]byte, error) {
	b, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		return nil, nil
	}
	return b, err
}

func addresses(ips []netip.Addr) []string {
	var list []string
	for _, ip := range ips {
		list = append(list, ip.String())
	}
	return list
}
