package crix

import (
	"bufio"
	"fmt"
	"io"
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

// dnsConfig makes the pod's resolv.conf. ClusterFirst without cluster DNS means
// what Default means: the node's own resolv.conf.
func (d *Driver) dnsConfig(pod *v1.Pod) (*cri.DNSConfig, error) {
	dns := &cri.DNSConfig{}
	if pod.Spec.DNSPolicy != v1.DNSNone && d.ResolvConf != "" {
		f, err := os.Open(d.ResolvConf)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		if dns, err = parseResolvConf(f); err != nil {
			return nil, fmt.Errorf("%s: %w", d.ResolvConf, err)
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
	dns.Servers = firstUnique(dns.Servers, maxNameservers)
	dns.Searches = slices.DeleteFunc(firstUnique(dns.Searches, maxSearches), func(s string) bool { return len(s) > maxSearch })
	for len(strings.Join(dns.Searches, " ")) > maxSearchLine {
		dns.Searches = dns.Searches[:len(dns.Searches)-1]
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

func firstUnique(list []string, most int) []string {
	var out []string
	for _, s := range list {
		if !slices.Contains(out, s) && len(out) < most {
			out = append(out, s)
		}
	}
	return out
}
