package server

import (
	"sync"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/network"
	"github.com/crisp-cri/crisp/oci"
)

// interfacesMax bounds how many pods' network counters are kept open; those of others are
// opened each time.
const interfacesMax = 4096

// interfaces are the network counters of pods, open from the first time that somebody asks
// for them until the pod is stopped. The zero value is ready and has none.
type interfaces struct {
	mu   sync.Mutex
	open map[string]*network.Counters // guarded by mu; by ID of the sandbox
}

// read returns the counters of the interfaces of a sandbox that has a network of its own and is
// ready, else fault.WrongState.
func (n *interfaces) read(sb *oci.Sandbox) ([]network.InterfaceStats, error) {
	c, kept, err := n.get(sb)
	if err != nil {
		return nil, err
	}
	list, err := c.Read()
	if !kept {
		c.Close()
	}
	return list, err
}

// get returns the counters of sb, and whether they are kept; else the caller closes them.
func (n *interfaces) get(sb *oci.Sandbox) (c *network.Counters, kept bool, err error) {
	n.mu.Lock()
	c, kept = n.open[sb.ID()]
	n.mu.Unlock()
	if kept {
		return c, true, nil
	}
	c, err = network.OpenCounters(sb.NetNS())
	if err != nil {
		return nil, false, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	// Whoever stops the sandbox closes what is kept once it is not ready any more.
	if sb.State() != oci.SandboxReady {
		c.Close()
		return nil, false, fault.WrongState.Errorf("sandbox %s is %s: its network has no counters", sb.ID(), sb.State())
	}
	if _, other := n.open[sb.ID()]; other || len(n.open) >= interfacesMax {
		return c, false, nil
	}
	if n.open == nil {
		n.open = make(map[string]*network.Counters)
	}
	n.open[sb.ID()] = c
	return c, true, nil
}

// closeOne closes the counters of a sandbox that is not ready any more: a network namespace
// lives as long as they are open.
func (n *interfaces) closeOne(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if c, ok := n.open[id]; ok {
		c.Close()
		delete(n.open, id)
	}
}

// closeAll closes all counters.
func (n *interfaces) closeAll() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.open {
		c.Close()
	}
	n.open = nil
}
