package criruntime

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/crisp-cri/crisp/agent/podspec"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// resolvedConf has the upstream servers of systemd-resolved. The node's resolv.conf has only its
// stub, on a loopback address (systemd-resolved.service(8)).
const resolvedConf = "/run/systemd/resolve/resolv.conf"

// nodeDNS reads the DNS settings of the node that the pod needs.
func (d *Driver) nodeDNS(pod *v1.Pod) (dns podspec.NodeDNS, err error) {
	if pod.Spec.DNSPolicy == v1.DNSNone || d.o.ResolvConf == "" {
		return dns, nil
	}
	dns.Path = d.o.ResolvConf
	if dns.Own, err = readResolvConf(d.o.ResolvConf); err != nil || !podspec.NeedsBehind(pod, dns.Own) {
		return dns, err
	}
	dns.Behind, err = readResolvConf(d.resolved)
	if errors.Is(err, fs.ErrNotExist) { // another program than systemd-resolved listens there
		err = nil
	}
	return dns, err
}

func readResolvConf(path string) (*cri.DNSConfig, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	dns, err := podspec.ParseResolvConf(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return dns, nil
}
