package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/undo"
)

// A PortMapping is one entry of the capability portMappings (CNI's
// CONVENTIONS.md).
type PortMapping struct {
	HostPort      uint16 `json:"hostPort"`
	ContainerPort uint16 `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP"`
}

// An element is one entry of one of the table's maps. The pod's elements are also
// kept in a file, from which the table can be made again.
type element struct {
	Map   string `json:"map"`
	Key   string `json:"key"`
	Value string `json:"value"`
}

func (n *Net) portsDir() string           { return filepath.Join(n.dir(), "ports") }
func (n *Net) portsPath(id string) string { return filepath.Join(n.portsDir(), id) }

// command returns the nft command that does verb (add, create, delete) to e.
func (n *Net) command(verb string, e element) string {
	entry := e.Key
	if verb != "delete" {
		entry += " : " + e.Value
	}
	return fmt.Sprintf("%s element inet %s %s { %s }\n", verb, n.Name, e.Map, entry)
}

// elements returns the entries that lead ports to a pod with addrs. A port of one
// host address concerns that address's family only, and 0.0.0.0 and :: stand for
// all addresses of theirs.
func elements(ports []PortMapping, addrs []netip.Addr) ([]element, error) {
	var all []element
	for _, p := range ports {
		protocol := strings.ToLower(p.Protocol)
		if !slices.Contains([]string{"tcp", "udp", "sctp"}, protocol) || p.HostPort == 0 || p.ContainerPort == 0 {
			return nil, fault.Invalid.Errorf("port mapping %d:%d/%s", p.HostPort, p.ContainerPort, p.Protocol)
		}
		host := netip.Addr{}
		if p.HostIP != "" {
			var err error
			if host, err = netip.ParseAddr(p.HostIP); err != nil || host.Zone() != "" {
				return nil, fault.Invalid.Errorf("host address %q of a port mapping", p.HostIP)
			}
			host = host.Unmap()
			if host.Is6() && host.IsLoopback() {
				return nil, fault.Invalid.Errorf("host port %d on ::1: Linux cannot forward it", p.HostPort)
			}
		}
		for _, addr := range addrs {
			if host.IsValid() && host.Is4() != addr.Is4() {
				continue
			}
			family := "4"
			if addr.Is6() {
				family = "6"
			}
			e := element{
				Map:   "any" + family,
				Key:   fmt.Sprintf("%s . %d", protocol, p.HostPort),
				Value: fmt.Sprintf("%s . %d", addr, p.ContainerPort),
			}
			if host.IsValid() && !host.IsUnspecified() {
				e.Map, e.Key = "one"+family, host.String()+" . "+e.Key
			}
			all = append(all, e)
		}
	}
	return all, nil
}

// openPorts leads ports to a pod with addrs. A port that another pod has is
// fault.Exists: the kubelet tries again, and the other may be on its way out.
func (n *Net) openPorts(ctx context.Context, id string, ports []PortMapping, addrs []netip.Addr) (err error) {
	own, err := elements(ports, addrs)
	if err != nil || len(own) == 0 {
		return err
	}
	unlock, err := n.lock(ctx, tableLock)
	if err != nil {
		return err
	}
	defer unlock()
	if err := n.taken(id, own); err != nil {
		return err
	}
	// The file comes first: an element without a file would be nobody's.
	if err := os.MkdirAll(n.portsDir(), 0o755); err != nil {
		return err
	}
	if err := atomicfile.WriteJSON(n.portsPath(id), own); err != nil {
		return err
	}
	var commands strings.Builder
	for _, e := range own {
		commands.WriteString(n.command("create", e))
	}
	if err := nft(ctx, commands.String()); err != nil {
		// The table has gone since ensureTable, or has what no file tells of.
		if again := n.writeTable(ctx); again != nil {
			ctx, cancel := undo.Context(ctx)
			defer cancel()
			return errors.Join(err, again, n.takeBack(ctx, id))
		}
	}
	forgetFlows(ports)
	return nil
}

// taken says who has one of the ports of id.
func (n *Net) taken(id string, own []element) error {
	ids, err := n.portOwners()
	if err != nil {
		return err
	}
	seen := make(map[element]string)
	for _, other := range ids {
		if other == id {
			continue // of an earlier ADD; replaced
		}
		theirs, err := n.loadPorts(other)
		if err != nil {
			return err
		}
		for _, e := range theirs {
			seen[element{Map: e.Map, Key: e.Key}] = other
		}
	}
	for _, e := range own {
		key := element{Map: e.Map, Key: e.Key}
		if other, ok := seen[key]; ok {
			return fault.Exists.Errorf("host port %s is taken by sandbox %s", e.Key, other)
		}
		seen[key] = id
	}
	return nil
}

// closePorts takes back what openPorts has done; with no ports it does nothing.
func (n *Net) closePorts(ctx context.Context, id string) error {
	if _, err := os.Stat(n.portsPath(id)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	unlock, err := n.lock(ctx, tableLock)
	if err != nil {
		return err
	}
	defer unlock()
	return n.takeBack(ctx, id)
}

// takeBack removes the pod's elements from the table and then its file, which is there
// as long as the table may have one of them: addresses go round, and an element that
// nobody knows of would lead its port to whichever pod gets the address next.
// The table's lock is held.
func (n *Net) takeBack(ctx context.Context, id string) error {
	own, err := n.loadPorts(id)
	if err != nil {
		return err
	}
	var commands strings.Builder
	for _, e := range own {
		commands.WriteString(n.command("delete", e))
	}
	// A file without elements is what is left of a try that failed.
	if len(own) == 0 || nft(ctx, commands.String()) != nil {
		if err := n.rewriteWithout(ctx, id); err != nil {
			return err
		}
	}
	if err := os.Remove(n.portsPath(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// rewriteWithout writes the table anew without the pod's elements: what it has is not
// as the pod's file says. Without a table, as after a reboot, there is nothing to take
// back. The file is emptied first, not removed, and so needs no space on the disk.
func (n *Net) rewriteWithout(ctx context.Context, id string) error {
	if err := os.Truncate(n.portsPath(id), 0); err != nil {
		return err
	}
	if !chainExists(n.Name, "postrouting") {
		return nil
	}
	return n.writeTable(ctx)
}

// loadPorts returns the elements of id. A file that a power cut has damaged says
// nothing of ports, because it says that the table is gone too; one that is empty is
// of a pod whose elements are to go.
func (n *Net) loadPorts(id string) ([]element, error) {
	data, err := os.ReadFile(n.portsPath(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var own []element
	if json.Unmarshal(data, &own) != nil {
		return nil, nil
	}
	return own, nil
}

// portOwners returns the IDs of all pods with host ports.
func (n *Net) portOwners() ([]string, error) {
	entries, err := os.ReadDir(n.portsDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

// allElements returns the commands for the host ports of all pods.
func (n *Net) allElements() ([]string, error) {
	ids, err := n.portOwners()
	if err != nil {
		return nil, err
	}
	var commands []string
	for _, id := range ids {
		own, err := n.loadPorts(id)
		if err != nil {
			return nil, err
		}
		for _, e := range own {
			commands = append(commands, n.command("add", e))
		}
	}
	return commands, nil
}

// sweepPorts takes back the host ports of those who are gone.
func (n *Net) sweepPorts(ctx context.Context, gone func(id string) bool) error {
	unlock, err := n.lock(ctx, tableLock)
	if err != nil {
		return err
	}
	defer unlock()
	ids, err := n.portOwners()
	if err != nil {
		return err
	}
	var swept []string
	for _, id := range ids {
		if !gone(id) {
			continue
		}
		if err := os.Truncate(n.portsPath(id), 0); err != nil {
			return err
		}
		swept = append(swept, id)
	}
	if len(swept) > 0 && chainExists(n.Name, "postrouting") {
		if err := n.writeTable(ctx); err != nil {
			return err
		}
	}
	for _, id := range swept {
		if err := os.Remove(n.portsPath(id)); err != nil {
			return err
		}
	}
	return nil
}

// forgetFlows drops what conntrack knows of UDP to these host ports: a client that
// kept sending before the port was open would keep hitting the host. It is a
// courtesy, and not every kernel can (nf_conntrack_netlink).
func forgetFlows(ports []PortMapping) {
	for _, p := range ports {
		if !strings.EqualFold(p.Protocol, "udp") {
			continue
		}
		for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
			filter := &netlink.ConntrackFilter{}
			if filter.AddProtocol(unix.IPPROTO_UDP) == nil && filter.AddPort(netlink.ConntrackOrigDstPort, p.HostPort) == nil {
				netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, filter)
			}
		}
	}
}
