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

// An element is one entry of one of the table's maps. The pod's elements are also stored in a
// file, from which the table can be rewritten.
type element struct {
	Map   string `json:"map"`
	Key   string `json:"key"`
	Value string `json:"value"`
}

func (n *Net) portsDir() string           { return filepath.Join(n.dir(), "ports") }
func (n *Net) portsPath(id string) string { return filepath.Join(n.portsDir(), id) }

// commands returns the nft commands that apply verb (add, create, delete) to list.
func (n *Net) commands(verb string, list []element) string {
	var text strings.Builder
	for _, e := range list {
		entry := e.Key
		if verb != "delete" {
			entry += " : " + e.Value
		}
		fmt.Fprintf(&text, "%s element inet %s %s { %s }\n", verb, n.Name, e.Map, entry)
	}
	return text.String()
}

// elements returns the entries that forward ports to a pod with addrs. A port with a host
// address applies only to the family of that address; 0.0.0.0 and :: mean all addresses of their
// family.
func elements(ports []PortMapping, addrs []netip.Addr) ([]element, error) {
	var all []element
	seen := make(map[element]bool)
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
			if !seen[e] { // two containers may have the same port
				all, seen[e] = append(all, e), true
			}
		}
	}
	return all, nil
}

// openPorts forwards ports to a pod with addrs. The error is fault.Exists if another pod has one
// of them: the kubelet retries, and the other pod may be about to go.
func (n *Net) openPorts(ctx context.Context, id string, ports []PortMapping, addrs []netip.Addr) (err error) {
	own, err := elements(ports, addrs)
	if err != nil || len(own) == 0 {
		return err
	}
	led, err := n.addPorts(ctx, id, own)
	if err != nil {
		return err
	}
	dropStaleFlows(ctx, led)
	return nil
}

// addPorts adds the elements of a pod to the table. It returns the added elements: those of all
// pods, if the table was gone.
func (n *Net) addPorts(ctx context.Context, id string, own []element) ([]element, error) {
	unlock, err := n.lock(ctx, tableLock)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := n.conflict(id, own); err != nil {
		return nil, err
	}
	// The file comes first: an element without a file would be leaked.
	if err := os.MkdirAll(n.portsDir(), 0o755); err != nil {
		return nil, err
	}
	if err := atomicfile.WriteJSON(n.portsPath(id), own); err != nil {
		return nil, err
	}
	if err := nft(ctx, n.commands("create", own)); err != nil {
		// The table has gone since ensureTable, or has elements that no file records.
		all, again := n.writeTable(ctx)
		if again != nil {
			ctx, cancel := undo.Context(ctx)
			defer cancel()
			return nil, errors.Join(err, again, n.removePorts(ctx, id))
		}
		return all, nil
	}
	return own, nil
}

// conflict returns an error if another pod has one of the ports of id.
func (n *Net) conflict(id string, own []element) error {
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

// closePorts undoes openPorts; for a pod without ports it does nothing.
func (n *Net) closePorts(ctx context.Context, id string) error {
	if _, err := os.Stat(n.portsPath(id)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	own, err := n.loadPorts(id)
	if err != nil {
		return err
	}
	unlock, err := n.lock(ctx, tableLock)
	if err != nil {
		return err
	}
	err = n.removePorts(ctx, id)
	unlock()
	if err != nil {
		return err
	}
	dropFlowsTo(ctx, own)
	return nil
}

// removePorts removes the pod's elements from the table and then its file, which must exist as long
// as the table may have one of them: addresses are reused, and a leaked element would forward
// its port to the next pod with the address. The caller holds the table's lock.
func (n *Net) removePorts(ctx context.Context, id string) error {
	own, err := n.loadPorts(id)
	if err != nil {
		return err
	}
	// A failed attempt leaves an empty file.
	if len(own) == 0 || nft(ctx, n.commands("delete", own)) != nil { // or the table differs from the file
		if err := n.rewriteWithout(ctx, id); err != nil {
			return err
		}
	}
	if err := os.Remove(n.portsPath(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// rewriteWithout rewrites the table without the elements of these pods. Without a table, as
// after a reboot, there is nothing to remove. It first truncates their files instead of removing
// them; that needs no disk space.
func (n *Net) rewriteWithout(ctx context.Context, ids ...string) error {
	for _, id := range ids {
		if err := os.Truncate(n.portsPath(id), 0); err != nil {
			return err
		}
	}
	if !chainExists(n.Name, "postrouting") {
		return nil
	}
	_, err := n.writeTable(ctx)
	return err
}

// loadPorts returns the elements of ids: none if a power cut has damaged a file, as
// then the table is gone too, and none if it is empty, as then the pod's elements are
// to be removed.
func (n *Net) loadPorts(ids ...string) ([]element, error) {
	var all []element
	for _, id := range ids {
		data, err := os.ReadFile(n.portsPath(id))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		var own []element
		if json.Unmarshal(data, &own) == nil {
			all = append(all, own...)
		}
	}
	return all, nil
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

// allElements returns the host ports of all pods.
func (n *Net) allElements() ([]element, error) {
	ids, err := n.portOwners()
	if err != nil {
		return nil, err
	}
	return n.loadPorts(ids...)
}

// sweepPorts removes the host ports of pods that are gone.
func (n *Net) sweepPorts(ctx context.Context, gone func(id string) bool) error {
	swept, err := n.removePortsOf(ctx, gone)
	dropFlowsTo(ctx, swept)
	return err
}

// removePortsOf is removePorts for all pods that are gone. It returns their elements.
func (n *Net) removePortsOf(ctx context.Context, gone func(id string) bool) (elements []element, err error) {
	unlock, err := n.lock(ctx, tableLock)
	if err != nil {
		return nil, err
	}
	defer unlock()
	ids, err := n.portOwners()
	if err != nil {
		return nil, err
	}
	swept := slices.DeleteFunc(ids, func(id string) bool { return !gone(id) })
	if len(swept) == 0 {
		return nil, nil
	}
	if elements, err = n.loadPorts(swept...); err != nil {
		return nil, err
	}
	if err := n.rewriteWithout(ctx, swept...); err != nil {
		return nil, err
	}
	for _, id := range swept {
		if err := os.Remove(n.portsPath(id)); err != nil {
			return elements, err
		}
	}
	return elements, nil
}
