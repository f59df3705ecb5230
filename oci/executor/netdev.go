package executor

import (
	"cmp"
	"maps"
	"net"
	"os"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/thread"
)

// leaveMoved drops the network devices that an earlier container of the pod has brought into its
// network. They stay there until that is gone, and cannot be moved again. From this look at them
// until they are moved, no other start may come between: it would find them on the host as well.
func leaveMoved(l *specs.Linux) {
	i := slices.IndexFunc(l.Namespaces, func(ns specs.LinuxNamespace) bool { return ns.Type == specs.NetworkNamespace })
	if i < 0 || l.Namespaces[i].Path == "" {
		return
	}
	maps.DeleteFunc(l.NetDevices, func(host string, d specs.LinuxNetDevice) bool {
		return !hasDevice("", host) && hasDevice(l.Namespaces[i].Path, cmp.Or(d.Name, host))
	})
}

// hasDevice reports whether a network namespace, "" for our own, has a device of that name.
func hasDevice(netNS, name string) bool {
	return thread.Run(func() error {
		if netNS != "" {
			ns, err := os.Open(netNS)
			if err != nil {
				return err
			}
			defer ns.Close()
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				return err
			}
		}
		_, err := net.InterfaceByName(name)
		return err
	}) == nil
}
