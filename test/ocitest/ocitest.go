// Package ocitest has what tests of package oci, and of packages built on it,
// need: a Machine, which needs neither root nor processes, and the contract of
// any executor (Suite), which both the Machine and the real executor fulfil.
//
// A Machine is a fake node. It outlives the Runtimes that are opened on it, as a
// node outlives its daemon, and its executor can be crashed. The programs of its containers are
// scripts in the language of test/testbin. It implements the verbs
//
//	print eprint sleep exit kill catch ignore-term eat echo-stdin spawn
//
// A program that is not called testbin runs until it is signalled; one whose
// name begins with "missing" cannot be executed. Time is package time's, so that
// tests run under testing/synctest.
//
// Namespaces, cgroups and descriptors of real processes are left to tests with
// the kernel.
package ocitest

import (
	"log/slog"
	"os"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/crisp-cri/crisp/oci"
)

// A Machine is a fake node.
type Machine struct {
	*Executor
	*Host
	Root, State string
	Records     *Records
	Fuse        Fuse // blows where a test wants the daemon to die
}

// NewMachine returns a Machine below a directory of its own.
func NewMachine(t testing.TB) *Machine {
	t.Helper()
	m := &Machine{Root: t.TempDir(), State: t.TempDir()}
	m.Records = &Records{dir: m.Root, fuse: &m.Fuse}
	m.Executor = newExecutor(&m.Fuse)
	m.Host = newHost(&m.Fuse, m.Executor.runs)
	t.Cleanup(m.Executor.end)
	return m
}

// Options returns the options of a Runtime on the machine.
func (m *Machine) Options(t testing.TB) oci.Options {
	return oci.Options{
		Root: m.Root, State: m.State, Records: m.Records, PodInit: os.DevNull, // nothing executes it
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Dial: m.Executor.Dial, Host: m.Host,
	}
}

// Open opens a Runtime on the machine. It is closed when the test ends, if not
// before.
func (m *Machine) Open(t testing.TB) *oci.Runtime {
	t.Helper()
	return Open(t, m.Options(t))
}

// Reboot ends all processes and removes everything in the kernel. What is in
// State stays, as on a machine that has it on a disk.
func (m *Machine) Reboot() {
	m.Executor.reboot()
	m.Host.reboot()
}

// Processes returns how many processes of a container run.
func (m *Machine) Processes(_ testing.TB, c *oci.Container) int { return m.Alive(c.ID()) }

// CrashExecutor implements Node.
func (m *Machine) CrashExecutor(testing.TB) { m.Executor.Crash() }

// Spec implements Node.
func (m *Machine) Spec(args ...string) *specs.Spec { return Spec(args...) }

// Open opens a Runtime. It is closed when the test ends, if not before.
func Open(t testing.TB, o oci.Options) *oci.Runtime {
	t.Helper()
	r, err := oci.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// Spec returns the spec of a container that runs testbin with args in a PID
// namespace of its own.
func Spec(args ...string) *specs.Spec {
	return &specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: "rootfs"},
		Process: &specs.Process{Cwd: "/", Args: append([]string{"/testbin"}, args...)},
		Linux:   &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace}}},
	}
}
