package ocitest

import (
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/crisp-cri/crisp/oci"
)

// A Host is a fake kernel that only keeps a list.
type Host struct {
	fuse *Fuse
	find func(pid int, startTime uint64) bool // in the executor's processes

	mu      sync.Mutex
	pins    map[string][]string // directory → kinds; guarded by mu
	cgroups map[string]bool     // guarded by mu
	fail    map[string]error    // guarded by mu
}

func newHost(fuse *Fuse, find func(int, uint64) bool) *Host {
	return &Host{
		fuse: fuse, find: find,
		pins: make(map[string][]string), cgroups: make(map[string]bool), fail: make(map[string]error),
	}
}

// FailHost makes an operation of the host fail with err until that is nil:
// "pin", "unpin", "cgroup".
func (h *Host) FailHost(what string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fail[what] = err
}

// Left returns what is still pinned, and the existing cgroups.
func (h *Host) Left() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var left []string
	for dir, kinds := range h.pins {
		left = append(left, fmt.Sprint("pins ", dir, kinds))
	}
	for path := range h.cgroups {
		left = append(left, "cgroup "+path)
	}
	slices.Sort(left)
	return left
}

// reboot forgets everything.
func (h *Host) reboot() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.pins)
	clear(h.cgroups)
}

func (h *Host) do(what string, f func()) error {
	return h.fuse.Step(what, func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		if err := h.fail[what]; err != nil {
			return err
		}
		f()
		return nil
	})
}

// Pin implements oci.Host.
func (h *Host) Pin(p oci.Pins) error {
	return h.do("pin", func() {
		for _, kind := range wanted(p) {
			if !slices.Contains(h.pins[p.Dir], kind) {
				h.pins[p.Dir] = append(h.pins[p.Dir], kind)
			}
		}
	})
}

// Pinned implements oci.Host.
func (h *Host) Pinned(p oci.Pins) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, kind := range wanted(p) {
		if !slices.Contains(h.pins[p.Dir], kind) {
			return false
		}
	}
	return true
}

func wanted(p oci.Pins) []string {
	var kinds []string
	for kind, is := range map[string]bool{"net": p.Net, "uts": p.UTS, "ipc": p.IPC, "pid": p.Pid != 0, "user": p.IDs != nil} {
		if is {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

// Unpin implements oci.Host.
func (h *Host) Unpin(p oci.Pins) error { return h.do("unpin", func() { delete(h.pins, p.Dir) }) }

// Cgroup implements oci.Host.
func (h *Host) Cgroup(path string, present bool) error {
	return h.do("cgroup", func() {
		if present {
			h.cgroups[path] = true
		} else {
			delete(h.cgroups, path)
		}
	})
}

// EmptyCgroup implements oci.Host.
func (h *Host) EmptyCgroup(parent, name string, present bool) error {
	return h.Cgroup(parent+"/"+name, present)
}

// Find implements oci.Host.
func (h *Host) Find(pid int, startTime uint64) (*os.File, error) {
	if h.find(pid, startTime) {
		return pidfd(), nil
	}
	return nil, fmt.Errorf("process %d has ended", pid)
}

// Close implements oci.Host.
func (h *Host) Close() error { return nil }
