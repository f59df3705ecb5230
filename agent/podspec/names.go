package podspec

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// maxNames bounds the text of all names in a pod's /etc/hosts, which resolvers read from the start
// for each query.
const maxNames = 256 << 10

// hostNames are the names of the node in pods: those that podman and docker give it.
var hostNames = []string{"host.containers.internal", "host.docker.internal"}

// Names are the names by which pods find each other, Services and their node. The names of an
// object web of the namespace shop are web, within shop, and anywhere web.shop, web.shop.svc and
// web.shop.svc.CLUSTERDOMAIN, as cluster DNS has them for Services. There is no cluster DNS here:
// /etc/hosts has them.
type Names struct {
	domain string
	node   []string // the node's addresses
	list   []name   // by namespace and name
}

// A name is that of a Service, of a pod, or of a pod in its subdomain.
type name struct {
	namespace, name string
	short           bool // it is known in its namespace without that
	ips             []string
}

// A NamedPod is a wanted pod and its status; nil before it has one.
type NamedPod struct {
	*v1.Pod
	Status *v1.PodStatus
}

// NamesOf makes the names of a node with these addresses. A Service has the addresses of the ready
// pods that it selects; it comes before a pod of its name.
func NamesOf(pods []NamedPod, services []*v1.Service, node []string, domain string) *Names {
	n := &Names{domain: domain, node: node}
	pods = slices.DeleteFunc(slices.Clone(pods), func(p NamedPod) bool { return !p.reachable() })
	taken := map[podsync.Key]bool{}
	for _, s := range services {
		var ips []string
		selector := labels.SelectorFromSet(s.Spec.Selector)
		for _, p := range pods {
			if len(s.Spec.Selector) > 0 && s.Namespace == p.Namespace && selector.Matches(labels.Set(p.Labels)) &&
				(s.Spec.PublishNotReadyAddresses || p.ready()) {
				ips = append(ips, p.ips()...)
			}
		}
		taken[podsync.Key{Namespace: s.Namespace, Name: s.Name}] = true
		n.list = append(n.list, name{s.Namespace, s.Name, true, ips})
	}
	for _, p := range pods {
		if !taken[podsync.KeyOf(p.Pod)] {
			// A short name with dots could be that of a host of the Internet.
			n.list = append(n.list, name{p.Namespace, p.Name, !strings.Contains(p.Name, "."), p.ips()})
		}
		if p.Spec.Subdomain != "" { // as behind a headless Service
			n.list = append(n.list, name{p.Namespace, cmp.Or(p.Spec.Hostname, p.Name) + "." + p.Spec.Subdomain, true, p.ips()})
		}
	}
	slices.SortStableFunc(n.list, func(a, b name) int {
		return cmp.Or(strings.Compare(a.namespace, b.namespace), strings.Compare(a.name, b.name))
	})
	return n
}

// reachable reports whether a pod has addresses and processes that may listen there.
func (p *NamedPod) reachable() bool {
	return p.Status != nil && len(p.Status.PodIPs) > 0 && !podsync.Terminal(p.Status) && p.Status.Reason != podsync.StoppedReason
}

func (p *NamedPod) ready() bool {
	_, ready := podsync.Ready(p.Status)
	return ready && p.DeletionTimestamp == nil
}

func (p *NamedPod) ips() (ips []string) {
	for _, ip := range p.Status.PodIPs {
		ips = append(ips, ip.IP)
	}
	return ips
}

// Equal reports whether both have the same names and addresses.
func (n *Names) Equal(other *Names) bool {
	return n.domain == other.domain && slices.Equal(n.node, other.node) && slices.EqualFunc(n.list, other.list, func(a, b name) bool {
		return a.namespace == b.namespace && a.name == b.name && slices.Equal(a.ips, b.ips)
	})
}

// In returns the names as a pod of the namespace sees them, as lines of /etc/hosts. hosts is the
// rest of its /etc/hosts, which prevails: a name in it is left out.
func (n *Names) In(namespace, hosts string) string {
	taken := map[string]bool{}
	for line := range strings.Lines(hosts) {
		line, _, _ = strings.Cut(line, "#")
		if words := strings.Fields(line); len(words) > 1 {
			for _, word := range words[1:] {
				taken[word] = true
			}
		}
	}
	var b strings.Builder
	write := func(ips, names []string) {
		if names = slices.DeleteFunc(names, func(name string) bool { return taken[name] }); len(names) == 0 {
			return
		}
		for _, ip := range ips {
			if b.Len() < maxNames {
				fmt.Fprintf(&b, "%s\t%s\n", ip, strings.Join(names, "\t"))
			}
		}
	}
	write(n.node, slices.Clone(hostNames))
	for _, one := range n.list {
		write(one.ips, n.forms(one, namespace))
	}
	return b.String()
}

// forms returns the forms of a name in a namespace.
func (n *Names) forms(of name, namespace string) []string {
	long := of.name + "." + of.namespace
	forms := []string{long, long + ".svc"}
	if n.domain != "" {
		forms = append(forms, long+".svc."+n.domain)
	}
	if of.namespace == namespace && of.short {
		forms = append([]string{of.name}, forms...)
	}
	return forms
}
