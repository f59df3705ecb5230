package crix

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The most that resolvers use (resolv.conf(5): MAXNS) and that Kubernetes allows.
const (
	maxNameservers = 3
	maxSearches    = 32
	maxSearchLine  = 2048
	maxSearch      = 253 // longer ones make some resolvers abort
)

// resolvedConf is where systemd-resolved names the servers that it asks, behind the
// stub on a loopback address that its resolv.conf names (systemd-resolved.service(8)).
const resolvedConf = "/run/systemd/resolve/resolv.conf"

// dnsConfig makes the pod's resolv.conf. ClusterFirst without cluster DNS means
// what Default means: the node's own resolv.conf. told says what of it the pod does
// not get.
func (d *Driver) dnsConfig(pod *v1.Pod) (dns *cri.DNSConfig, told []string, err error) {
	dns = &cri.DNSConfig{}
	dropped := false
	if pod.Spec.DNSPolicy != v1.DNSNone && d.ResolvConf != "" {
		if dns, dropped, err = d.nodeDNS(pod.Spec.HostNetwork); err != nil {
			return nil, nil, err
		}
	}
	cluster := pod.Spec.DNSPolicy == v1.DNSClusterFirstWithHostNet || pod.Spec.DNSPolicy == v1.DNSClusterFirst && !pod.Spec.HostNetwork
	if cluster && len(d.ClusterDNS) > 0 {
		dns.Servers = slices.Clone(d.ClusterDNS)
		if domain := d.ClusterDomain; domain != "" {
			dns.Searches = append([]string{pod.Namespace + ".svc." + domain, "svc." + domain, domain}, dns.Searches...)
		}
		dns.Options = []string{"ndots:5"}
	}
	if c := pod.Spec.DNSConfig; c != nil {
		dns.Servers = append(dns.Servers, c.Nameservers...)
		dns.Searches = append(dns.Searches, c.Searches...)
		for _, o := range c.Options {
			dns.Options = setOption(dns.Options, o.Name, o.Value)
		}
	}
	told = limitDNS(dns)
	if dropped && len(dns.Servers) == 0 {
		told = append(told, fmt.Sprintf("the pod has no name server: %s names those of the node's loopback alone; name others with --resolv-conf, --cluster-dns or dnsConfig", d.ResolvConf))
	}
	return dns, told, nil
}

// nodeDNS reads the node's resolv.conf. Nobody listens on the loopback addresses of a
// pod that has a network of its own: it gets the servers behind a stub of the node's.
// dropped says that those of the loopback were taken out.
func (d *Driver) nodeDNS(hostNetwork bool) (dns *cri.DNSConfig, dropped bool, err error) {
	dns, err = readResolvConf(d.ResolvConf)
	if err != nil || hostNetwork || !slices.ContainsFunc(dns.Servers, loopback) {
		return dns, false, err
	}
	if !slices.ContainsFunc(dns.Servers, remote) {
		behind, err := readResolvConf(d.resolved)
		switch {
		case errors.Is(err, fs.ErrNotExist): // something else than systemd-resolved listens there
		case err != nil:
			return nil, false, err
		case slices.ContainsFunc(behind.Servers, remote):
			dns = behind
		}
	}
	dns.Servers = slices.DeleteFunc(dns.Servers, loopback)
	return dns, true, nil
}

func loopback(server string) bool {
	addr, err := netip.ParseAddr(server)
	return err == nil && addr.Unmap().IsLoopback()
}

func remote(server string) bool { return !loopback(server) }

// limitDNS takes out what resolvers cannot use, and says so.
func limitDNS(dns *cri.DNSConfig) (told []string) {
	servers, searches := unique(dns.Servers), unique(dns.Searches)
	dns.Servers = servers[:min(len(servers), maxNameservers)]
	if len(dns.Servers) < len(servers) {
		told = append(told, fmt.Sprintf("resolvers use %d name servers, the others are left out; applied: %s", maxNameservers, strings.Join(dns.Servers, " ")))
	}
	dns.Searches = slices.DeleteFunc(slices.Clone(searches), func(s string) bool { return len(s) > maxSearch })
	dns.Searches = dns.Searches[:min(len(dns.Searches), maxSearches)]
	for len(strings.Join(dns.Searches, " ")) > maxSearchLine {
		dns.Searches = dns.Searches[:len(dns.Searches)-1]
	}
	if len(dns.Searches) < len(searches) {
		told = append(told, fmt.Sprintf("resolvers use %d search domains of %d bytes each and %d in all, the others are left out; applied: %s",
			maxSearches, maxSearch, maxSearchLine, strings.Join(dns.Searches, " ")))
	}
	return told
}

func readResolvConf(path string) (*cri.DNSConfig, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	dns, err := parseResolvConf(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return dns, nil
}

// parseResolvConf reads resolv.conf(5): of several search or domain lines the
// last counts, options add up.
func parseResolvConf(r io.Reader) (*cri.DNSConfig, error) {
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
				name, value, ok := strings.Cut(option, ":")
				if ok {
					dns.Options = setOption(dns.Options, name, &value)
				} else {
					dns.Options = setOption(dns.Options, name, nil)
				}
			}
		}
	}
	return dns, lines.Err()
}

// setOption adds an option; one of the same name is replaced, as the manifest's
// replace the node's.
func setOption(options []string, name string, value *string) []string {
	text := name
	if value != nil && *value != "" {
		text += ":" + *value
	}
	for i, o := range options {
		if old, _, _ := strings.Cut(o, ":"); old == name {
			options[i] = text
			return options
		}
	}
	return append(options, text)
}

// unique returns the list without what stands in it before.
func unique(list []string) []string {
	var out []string
	for _, s := range list {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}
