package crix

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// makeHosts writes the file that is mounted at /etc/hosts and returns its path, or
// "" as long as the pod has no address. The text is the kubelet's, which programs
// read. The file is written in place, so that containers that have it mounted see
// a change.
func (d *Driver) makeHosts(pod *v1.Pod, ips []string) (string, error) {
	var text []byte
	switch {
	case pod.Spec.HostNetwork:
		node, err := os.ReadFile("/etc/hosts")
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		text = append([]byte("# Kubernetes-managed hosts file (host network).\n"), node...)
	case len(ips) == 0:
		return "", nil
	default:
		host, domain := d.hostname(pod)
		text = []byte(podHosts(host, domain, ips))
	}
	text = append(text, aliases(pod)...)
	path := d.hostsPath(string(pod.UID))
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, text) {
		return path, nil
	}
	return path, os.WriteFile(path, text, 0o644)
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
