package oci

import (
	"context"
	"os"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// ContainerConfig is what a container is made from.
type ContainerConfig struct {
	ID, Name, SandboxID   string // ID "" = a new one
	Spec                  *specs.Spec
	Env                   [][]byte // if not nil, replaces Spec.Process.Env: may hold what is not UTF-8
	PIDTarget             string   // container whose PID namespace is joined; resolved at Start
	Stdin, StdinOnce, TTY bool
	LogPath               string // absolute; "" = discard
	Extra                 []byte // the caller's, opaque
}

// A State is where a container is in its life.
type State uint8

const (
	Created State = iota
	Starting
	Running
	Stopping
	Exited
	Removing
)

// Status is the part of a container that changes. A copy is a snapshot.
type Status struct {
	State                 State
	Pid                   int // in the host's namespace; 0 unless alive
	StartedAt, FinishedAt time.Time
	ExitCode              int32  // 128+n for signal n
	Reason                string // Completed, Error, OOMKilled, StartError, Unknown, Reboot
	Message               string
	OOMKilled             bool
}

// A Container is one container, from Create until Remove returns.
type Container struct{}

func (r *Runtime) Create(ctx context.Context, c ContainerConfig) (*Container, error) {
	panic("not yet")
}
func (c *Container) ID() string                      { panic("not yet") }
func (c *Container) Config() ContainerConfig         { panic("not yet") }
func (c *Container) SandboxID() string               { panic("not yet") }
func (c *Container) CreatedAt() time.Time            { panic("not yet") }
func (c *Container) Extra() []byte                   { panic("not yet") }
func (c *Container) SetExtra(extra []byte) error     { panic("not yet") }
func (c *Container) Status() Status                  { panic("not yet") }
func (c *Container) Done() <-chan struct{}           { panic("not yet") }
func (c *Container) Start(ctx context.Context) error { panic("not yet") }
func (c *Container) Stop(ctx context.Context, sig unix.Signal, grace time.Duration) error {
	panic("not yet")
}
func (c *Container) Remove(ctx context.Context) error                            { panic("not yet") }
func (c *Container) Exec(ctx context.Context, e ExecConfig) (*Exec, error)       { panic("not yet") }
func (c *Container) Attach(ctx context.Context, stdin bool) (*Attachment, error) { panic("not yet") }
func (c *Container) Resize(ctx context.Context, width, height uint16) error      { panic("not yet") }
func (c *Container) ReopenLog(ctx context.Context) error                         { panic("not yet") }
func (c *Container) Update(ctx context.Context, r *specs.LinuxResources) error   { panic("not yet") }
func (c *Container) Stats() (Stats, error)                                       { panic("not yet") }

// ExecConfig is a process to run in a running container.
type ExecConfig struct {
	Process       *specs.Process
	Env           [][]byte // if not nil, replaces Process.Env
	Stdin, TTY    bool
	Width, Height uint16 // of the terminal; 0 = unset
}

// An Exec is a process run in a container. Its files are the caller's to close.
type Exec struct {
	Stdin, Stdout, Stderr *os.File // nil with a terminal; Stdin nil unless asked for
	PTY                   *os.File // the terminal's master, nil without one
}

func (e *Exec) Wait(ctx context.Context) (int32, error) { panic("not yet") }
func (e *Exec) Kill() error                             { panic("not yet") }
func (e *Exec) Close() error                            { panic("not yet") }

// An Attachment is a view on a container's stdio from now on. Closing Stdin
// detaches; with StdinOnce it closes the container's stdin too.
type Attachment struct {
	Stdin, Stdout, Stderr *os.File // Stdin nil unless asked for and there; Stderr nil with a terminal
}
