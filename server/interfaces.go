package server

import (
	"sync"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/network"
	"github.com/crisp-cri/crisp/oci"
)

// interfacesMax bounds how many pods' network counters stay open; for further pods they are
// opened on each read.
const interfacesMax = 4096

// interfaces caches the network counters of pods: each is opened at its first read and closed
// when the pod is stopped. The zero value is ready.
type interfaces struct {
	mu   sync.Mutex
	open map[string]*network.Counters // guarded by mu; by ID of the sandbox
}

// read returns the counters of a sandbox's interfaces. The sandbox must have its own network
// namespace; the error is fault.WrongState if it is not ready.
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

// get returns the counters of sb. The caller closes them unless kept.
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
	// StopPodSandbox makes the sandbox not ready and then closes kept counters: keep none after
	// that.
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

// closeOne closes the counters of a sandbox that is no longer ready; open counters would keep
// its network namespace alive.
func (n *interfaces) closeOne(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if c, ok := n.open[id]; ok {
		c.Close()
		delete(n.open, id)
	}
}

func (n *interfaces) closeAll() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.open {
		c.Close()
	}
	n.open = nil
}
