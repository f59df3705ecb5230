// Package oci holds containers and sandboxes.
package oci

import (
	"context"
	"log/slog"
)

// Records keeps durable records; *checkpoint.Manager is one.
type Records interface {
	Save(kind, id string, v any) error
	Load(kind, id string, v any) error // fault.NotFound
	IDs(kind string) ([]string, error) // corrupt ones are quarantined and left out
	Remove(kind, id string) error
}

// Options is what a Runtime is made of. Root, State, Records and Log are
// required.
type Options struct {
	Root, State   string
	Records       Records
	Rebooted      bool   // the machine was restarted since the records were written
	Executor      string // path of crisp-executor
	PodInit       string // path of crisp-podinit
	SystemdCgroup bool
	LogMaxLine    int // bytes; 0 = 16384
	Log           *slog.Logger
	OnEvent       func(Event) // called outside all locks; must not block; may be nil
}

// Runtime is the containers and sandboxes of one crispd.
type Runtime struct{}

// Open starts or finds the executor, loads the records, recovers and sweeps.
func Open(ctx context.Context, o Options) (*Runtime, error) { panic("not yet") }

// Close lets go of the executor. Containers run on.
func (r *Runtime) Close() error { panic("not yet") }

// NewID returns a fresh ID of 64 hexadecimal digits.
func NewID() string { panic("not yet") }

// Container returns the one container whose ID starts with prefix. Errors:
// fault.NotFound, fault.Invalid if it is ambiguous.
func (r *Runtime) Container(prefix string) (*Container, error) { panic("not yet") }

// Containers returns all containers, oldest first.
func (r *Runtime) Containers() []*Container { panic("not yet") }

// ContainerByName returns the container that was created under name.
func (r *Runtime) ContainerByName(name string) (*Container, bool) { panic("not yet") }

// Sandbox returns the one sandbox whose ID starts with prefix, in whatever
// state. Errors: fault.NotFound, fault.Invalid if it is ambiguous.
func (r *Runtime) Sandbox(prefix string) (*Sandbox, error) { panic("not yet") }

// Sandboxes returns all sandboxes but those being created, oldest first.
func (r *Runtime) Sandboxes() []*Sandbox { panic("not yet") }

// SandboxByName returns the sandbox that was created under name, in whatever state.
func (r *Runtime) SandboxByName(name string) (*Sandbox, bool) { panic("not yet") }
