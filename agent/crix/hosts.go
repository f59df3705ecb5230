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

// makeHosts writes the file that is mounted at /etc/hosts and returns its path,
// or "" if the pod needs none of its own: on the host's network without aliases
// the runtime gives it the host's. The file is written in place, so that
// containers that have it mounted see a change.
func (d *Driver) makeHosts(pod *v1.Pod, ips []string) (string, error) {
	var text []byte
	switch {
	case !pod.Spec.HostNetwork:
		text = []byte(podHosts(pod, ips))
	case len(pod.Spec.HostAliases) == 0:
		return "", nil
	default:
		node, err := os.ReadFile("/etc/hosts")
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		text = node
	}
	text = append(text, aliases(pod)...)
	path := d.hostsPath(string(pod.UID))
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, text) {
		return path, nil
	}
	return path, os.WriteFile(path, text, 0o644)
}

func podHosts(pod *v1.Pod, ips []string) string {
	var b strings.Builder
	b.WriteString("# Written by crisp for this pod.\n")
	b.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")
	b.WriteString("fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n")
	for _, ip := range ips {
		fmt.Fprintf(&b, "%s\t%s\n", ip, hostname(pod))
	}
	return b.String()
}

func aliases(pod *v1.Pod) string {
	if len(pod.Spec.HostAliases) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("\n# From spec.hostAliases.\n")
	for _, a := range pod.Spec.HostAliases {
		fmt.Fprintf(&b, "%s\t%s\n", a.IP, strings.Join(a.Hostnames, "\t"))
	}
	return b.String()
}
