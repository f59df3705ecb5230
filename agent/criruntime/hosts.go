package criruntime

import (
	"errors"
	"io/fs"
	"os"

	"github.com/crisp-cri/crisp/agent/podspec"
)

// hosts returns the content of the pod's /etc/hosts; "" while the pod has no address.
func hosts(in *podspec.Input) (string, error) {
	if !in.Pod.Spec.HostNetwork {
		return in.Hosts(nil), nil
	}
	node, err := os.ReadFile("/etc/hosts")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	return in.Hosts(node), nil
}
