package podspec

import (
	"bufio"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"
)

// The limits of resolvers (resolv.conf(5)) and of Kubernetes.
const (
	maxNameservers = 3
	maxSearches    = 32
	maxSearchLine  = 2048 // bytes of all domains, with the blanks between them
	maxSearch      = 253  // bytes of a domain; longer ones make some resolvers abort
)

const resolvConf = "/etc/resolv.conf"

// A NodeDNS is the node's resolv.conf. The zero value is none.
type NodeDNS struct {
	Path   string         // of the file, for messages
	Own    *cri.DNSConfig // its content; nil if pods get none of it
	Behind *cri.DNSConfig // the upstream servers of a local stub resolver in Own; nil without one
}

// NeedsBehind reports whether a pod needs the upstream servers of a stub resolver: it has its
// own network, where nothing listens on loopback addresses, and the node's resolv.conf has no
// other servers.
func NeedsBehind(pod *v1.Pod, own *cri.DNSConfig) bool {
	return !pod.Spec.HostNetwork && len(own.Servers) > 0 && !slices.ContainsFunc(own.Servers, remote)
}

// dnsConfig returns the pod's resolv.conf. Without cluster DNS, ClusterFirst means Default:
// the node's resolv.conf. warnings say what was left out.
func (in *Input) dnsConfig() (dns *cri.DNSConfig, warnings []string) {
	pod := in.Pod
	dns, dropped := in.nodeDNS()
	cluster := pod.Spec.DNSPolicy == v1.DNSClusterFirstWithHostNet || pod.Spec.DNSPolicy == v1.DNSClusterFirst && !pod.Spec.HostNetwork
	if cluster && len(in.Node.ClusterDNS) > 0 {
		dns.Servers = slices.Clone(in.Node.ClusterDNS)
		if domain := in.Node.ClusterDomain; domain != "" {
			dns.Searches = append([]string{pod.Namespace + ".svc." + domain, "svc." + domain, domain}, dns.Searches...)
		}
		dns.Options = []string{"ndots:5"}
	}
	if c := pod.Spec.DNSConfig; c != nil {
		dns.Servers = append(dns.Servers, c.Nameservers...)
		dns.Searches = append(dns.Searches, c.Searches...)
		for _, o := range c.Options {
			dns.Options = setOption(dns.Options, o.Name, ptr.Deref(o.Value, ""))
		}
	}
	warnings = limitDNS(dns)
	if none := len(dns.Servers) == 0; none && dropped {
		warnings = append(warnings, fmt.Sprintf("the pod has no name server: %s has only loopback addresses; set others with --resolv-conf, --cluster-dns or dnsConfig", in.DNS.Path))
	} else if none && in.DNS.Own != nil {
		warnings = append(warnings, fmt.Sprintf("the pod has no name server: %s has none yet; the pod gets them when it has", in.DNS.Path))
	}
	return dns, warnings
}

// ResolvConf returns the pod's /etc/resolv.conf. follows is false if it has nothing of the node's,
// so that it cannot change.
func (in *Input) ResolvConf() (text string, follows bool) {
	if in.DNS.Own == nil || in.Pod.Spec.DNSPolicy == v1.DNSNone {
		return "", false
	}
	dns, _ := in.dnsConfig()
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
	return b.String(), true
}

// nodeDNS returns the pod's share of the node's resolv.conf. A pod with its own network gets the
// upstream servers of a stub resolver instead of loopback servers. dropped says that loopback
// servers were left out.
func (in *Input) nodeDNS() (dns *cri.DNSConfig, dropped bool) {
	if in.DNS.Own == nil || in.Pod.Spec.DNSPolicy == v1.DNSNone {
		return &cri.DNSConfig{}, false
	}
	from := in.DNS.Own
	dropped = !in.Pod.Spec.HostNetwork && slices.ContainsFunc(from.Servers, loopback)
	if NeedsBehind(in.Pod, from) && slices.ContainsFunc(in.DNS.Behind.GetServers(), remote) {
		from = in.DNS.Behind
	}
	dns = &cri.DNSConfig{Servers: slices.Clone(from.Servers), Searches: slices.Clone(from.Searches), Options: slices.Clone(from.Options)}
	if dropped {
		dns.Servers = slices.DeleteFunc(dns.Servers, loopback)
	}
	return dns, dropped
}

func loopback(server string) bool {
	addr, err := netip.ParseAddr(server)
	return err == nil && addr.Unmap().IsLoopback()
}

func remote(server string) bool { return !loopback(server) }

func limitDNS(dns *cri.DNSConfig) (warnings []string) {
	servers, searches := unique(dns.Servers), unique(dns.Searches)
	dns.Servers = servers[:min(len(servers), maxNameservers)]
	if len(dns.Servers) < len(servers) {
		warnings = append(warnings, fmt.Sprintf("resolvers use %d name servers, the others are left out; applied: %s", maxNameservers, strings.Join(dns.Servers, " ")))
	}
	dns.Searches = slices.DeleteFunc(slices.Clone(searches), func(s string) bool { return len(s) > maxSearch })
	dns.Searches = dns.Searches[:min(len(dns.Searches), maxSearches)]
	for len(strings.Join(dns.Searches, " ")) > maxSearchLine {
		dns.Searches = dns.Searches[:len(dns.Searches)-1]
	}
	if len(dns.Searches) < len(searches) {
		warnings = append(warnings, fmt.Sprintf("resolvers use %d search domains of %d bytes each and %d in all, the others are left out; applied: %s",
			maxSearches, maxSearch, maxSearchLine, strings.Join(dns.Searches, " ")))
	}
	return warnings
}

// ParseResolvConf parses resolv.conf(5). The last search or domain line counts, and the options
// of all lines.
func ParseResolvConf(r io.Reader) (*cri.DNSConfig, error) {
	dns := &cri.DNSConfig{}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) < 2 || strings.HasPrefix(words[0], "#") || strings.HasPrefix(words[0], ";") {
			continue
		}
		switch words[0] {
		case "nameserver":
			dns.Servers = append(dns.Servers, words[1])
		case "search":
			dns.Searches = nil
			for _, search := range words[1:] {
				if search != "." {
					dns.Searches = append(dns.Searches, strings.TrimSuffix(search, "."))
				}
			}
		case "domain":
			dns.Searches = words[1:2]
		case "options":
			for _, option := range words[1:] {
				name, value, _ := strings.Cut(option, ":")
				dns.Options = setOption(dns.Options, name, value)
			}
		}
	}
	return dns, lines.Err()
}

// setOption adds an option, or replaces the one of the same name: options of the manifest
// override the node's.
func setOption(options []string, name, value string) []string {
	text := name
	if value != "" {
		text += ":" + value
	}
	for i, o := range options {
		if old, _, _ := strings.Cut(o, ":"); old == name {
			options[i] = text
			return options
		}
	}
	return append(options, text)
}

func unique(list []string) []string {
	var out []string
	for _, s := range list {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// Hosts returns the pod's /etc/hosts in the kubelet's form; "" while the pod has no
// address. node is the node's /etc/hosts, for pods on its network.
func (in *Input) Hosts(node []byte) string {
	switch {
	case in.Pod.Spec.HostNetwork:
		return "# Kubernetes-managed hosts file (host network).\n" + string(node) + aliases(in.Pod)
	case len(in.IPs) == 0:
		return ""
	}
	host, domain := in.hostname()
	return podHosts(host, domain, in.IPs) + aliases(in.Pod)
}

func podHosts(host, domain string, ips []string) string {
	var b strings.Builder
	b.WriteString("# Kubernetes-managed hosts file.\n")
	b.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")
	b.WriteString("fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n")
	for _, ip := range ips {
		if domain != "" {
			fmt.Fprintf(&b, "%s\t%s.%s\t%s\n", ip, host, domain, host)
		} else {
			fmt.Fprintf(&b, "%s\t%s\n", ip, host)
		}
	}
	return b.String()
}

func aliases(pod *v1.Pod) string {
	if len(pod.Spec.HostAliases) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("\n# Entries added by HostAliases.\n")
	for _, a := range pod.Spec.HostAliases {
		fmt.Fprintf(&b, "%s\t%s\n", a.IP, strings.Join(a.Hostnames, "\t"))
	}
	return b.String()
}
