package crix

import (
	"errors"
	"io/fs"
	"os"

	"github.com/crisp-cri/crisp/agent/podspec"
)

// hosts is what the pod has in its /etc/hosts.
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

// writeHosts writes the file that is mounted at /etc/hosts. It is written in place, so
// that containers that have it mounted see a change.
func (d *Driver) writeHosts(uid, text string) error {
	path := d.hostsPath(uid)
	if old, err := os.ReadFile(path); err == nil && string(old) == text {
		return nil
	}
	return os.WriteFile(path, []byte(text), 0o644)
}
