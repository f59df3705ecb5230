package oci

import (
	"context"
	"time"
)

// SandboxConfig is what a sandbox is made from. It never changes.
type SandboxConfig struct {
	ID, Name                                 string // ID "" = a new one
	Hostname                                 string // ignored with HostNetwork: the UTS namespace is then the host's too
	HostNetwork, HostIPC, HostPID, SharedPID bool
	Sysctls                                  map[string]string // only those of namespaces of its own, else fault.Invalid
	// CgroupParent is an absolute cgroupfs path, or a slice name with the
	// systemd driver. "" = a cgroup of its own below /crisp (crisp.slice), which
	// goes with the sandbox.
	CgroupParent string
	Extra        []byte // the caller's, opaque
}

// A SandboxState is where a sandbox is in its life.
type SandboxState uint8

const (
	SandboxCreating SandboxState = iota
	SandboxReady
	SandboxStopping
	SandboxNotReady
	SandboxRemoving
)

// A Sandbox is a set of pinned namespaces and the containers in it.
type Sandbox struct{}

func (r *Runtime) CreateSandbox(ctx context.Context, c SandboxConfig) (*Sandbox, error) {
	panic("not yet")
}
func (sb *Sandbox) ID() string                       { panic("not yet") }
func (sb *Sandbox) Config() SandboxConfig            { panic("not yet") }
func (sb *Sandbox) CreatedAt() time.Time             { panic("not yet") }
func (sb *Sandbox) Dir() string                      { panic("not yet") }
func (sb *Sandbox) RunDir() string                   { panic("not yet") }
func (sb *Sandbox) NetNS() string                    { panic("not yet") }
func (sb *Sandbox) NamespacePath(kind string) string { panic("not yet") }
func (sb *Sandbox) ShmDir() string                   { panic("not yet") }
func (sb *Sandbox) CgroupParent() string             { panic("not yet") }
func (sb *Sandbox) State() SandboxState              { panic("not yet") }
func (sb *Sandbox) Extra() []byte                    { panic("not yet") }
func (sb *Sandbox) SetExtra(extra []byte) error      { panic("not yet") }
func (sb *Sandbox) Ready(extra []byte) error         { panic("not yet") }
func (sb *Sandbox) BeginStop() error                 { panic("not yet") }
func (sb *Sandbox) Containers() []*Container         { panic("not yet") }
func (sb *Sandbox) Unpin(ctx context.Context) error  { panic("not yet") }
func (sb *Sandbox) Stopped() error                   { panic("not yet") }
func (sb *Sandbox) Remove(ctx context.Context) error { panic("not yet") }
func (sb *Sandbox) Stats() (Stats, error)            { panic("not yet") }
