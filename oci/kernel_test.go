package oci_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/systemd"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/checkpoint"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/test/ocitest"
	"github.com/crisp-cri/crisp/test/testenv"
	"github.com/crisp-cri/crisp/test/testns"
)

// A kernelNode is this machine, with the test's own executor.
type kernelNode struct {
	bin         string
	dir         string
	root, state string
	rootfs      string

	mu  sync.Mutex
	ids []string // of everything made on it; guarded by mu
}

// scratch is the directory of files that all tests share.
var scratch = os.Getenv(scratchEnv)

const scratchEnv = "CRISP_OCI_TEST_SCRATCH"

func TestMain(m *testing.M) {
	if os.Getenv(daemonEnv) != "" {
		os.Exit(m.Run()) // a daemon is killed, and could not remove anything
	}
	testns.Main(m, testns.Options{
		Prepare: func() ([]string, func(), error) {
			var err error
			if scratch, err = os.MkdirTemp("", "crisp-oci-"); err != nil {
				return nil, nil, err
			}
			if testenv.Root() {
				if _, err = programs(); err != nil {
					return nil, nil, err
				}
			}
			return []string{scratchEnv + "=" + scratch}, func() { os.RemoveAll(scratch) }, os.Chmod(scratch, 0o711)
		},
	})
}

// programs returns the directory of the executor, the pod init and testbin: CRISP_BIN, as
// `make` builds them, or one that they are built into now.
var programs = sync.OnceValues(func() (bin string, err error) {
	build := func(args ...string) {
		if err != nil {
			return
		}
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir = ".."
		cmd.Env = os.Environ()
		if args[0] == "go" && args[len(args)-1] == "./test/testbin" {
			cmd.Env = append(cmd.Env, "CGO_ENABLED=0")
		}
		if out, berr := cmd.CombinedOutput(); berr != nil {
			err = fmt.Errorf("%v: %w\n%s", args, berr, out)
		}
	}
	if bin = os.Getenv("CRISP_BIN"); bin == "" {
		bin = scratch
	}
	testbin := filepath.Join(scratch, "testbin")
	if _, err := os.Stat(testbin); err == nil {
		return bin, nil // built once for all tests
	}
	if bin == scratch {
		build("go", "build", "-tags", "seccomp containers_image_openpgp", "-o", bin+"/", "./cmd/crisp-executor")
		build("gcc", "-Os", "-s", "-static", "-nostartfiles", "-o", bin+"/crisp-podinit", "oci/podinit/podinit.c")
	}
	if data, rerr := os.ReadFile(filepath.Join(bin, "testbin")); rerr == nil { // without Go, CRISP_BIN has it
		return bin, errors.Join(err, os.WriteFile(testbin, data, 0o755))
	}
	build("go", "build", "-ldflags", "-s -w", "-o", testbin, "./test/testbin")
	return bin, err
})

func newKernelNode(t testing.TB) *kernelNode {
	t.Helper()
	testenv.NeedRoot(t, "it runs containers")
	bin, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	// Not t.TempDir: the path of a socket has at most 108 bytes (unix(7)).
	dir, err := os.MkdirTemp("", "crisp-oci-")
	if err != nil {
		t.Fatal(err)
	}
	n := &kernelNode{bin: bin, dir: dir, root: filepath.Join(dir, "root"), state: filepath.Join(dir, "state"), rootfs: filepath.Join(dir, "rootfs")}
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(n.state, "executor.log"))
			t.Logf("executor.log:\n%s", log)
			n.clear(t)
		}
		n.noLeaks(t)
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	for _, sub := range []string{"proc", "dev", "sys", "tmp"} {
		if err := os.MkdirAll(filepath.Join(n.rootfs, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(filepath.Join(scratch, "testbin"), filepath.Join(n.rootfs, "testbin")); err != nil {
		t.Fatal(err)
	}
	return n
}

// clear removes what a failed test has left, so that it fails no other test.
func (n *kernelNode) clear(t testing.TB) {
	ctx := context.WithoutCancel(t.Context()) // which has ended
	r, err := oci.Open(ctx, n.options(t))
	if err != nil {
		t.Log(err)
		return
	}
	t.Log(errors.Join(r.Shutdown(ctx), r.Close()))
}

func (n *kernelNode) options(t testing.TB) oci.Options {
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	records, err := checkpoint.Open(n.root, n.state, log)
	if err != nil {
		t.Fatal(err)
	}
	return oci.Options{
		Root: n.root, State: n.state, Records: records, Rebooted: records.Boot().Rebooted(),
		Executor: filepath.Join(n.bin, "crisp-executor"), PodInit: filepath.Join(n.bin, "crisp-podinit"), Log: log,
		SystemdCgroup: viaSystemd(),
		OnEvent:       n.note,
	}
}

// viaSystemd reports whether systemd makes the cgroups, as crispd would decide.
func viaSystemd() bool { return systemd.IsRunningSystemd() && cgroups.IsCgroup2UnifiedMode() }

func (n *kernelNode) note(e oci.Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case e.Container != nil && e.Kind == oci.ContainerCreated:
		n.ids = append(n.ids, e.Container.ID())
	case e.Kind == oci.SandboxCreated:
		n.ids = append(n.ids, e.Sandbox.ID())
	}
}

// noLeaks fails the test for each mount, cgroup and process of the node that is left.
// Others on the machine do not count.
func (n *kernelNode) noLeaks(t testing.TB) {
	n.mu.Lock()
	marks := append([]string{n.dir}, n.ids...)
	n.mu.Unlock()
	marked := func(s string) bool {
		return slices.ContainsFunc(marks, func(mark string) bool { return strings.Contains(s, mark) })
	}
	var left []string
	for wait := time.Millisecond; wait < 30*time.Second; wait *= 2 {
		left = nil
		data, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			if marked(line) {
				left = append(left, "mount "+line)
			}
		}
		_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && marked(path) {
				left = append(left, "cgroup "+path)
			}
			return nil // a file that disappears meanwhile is not the node's
		})
		procs, _ := filepath.Glob("/proc/[0-9]*")
		for _, proc := range procs {
			for _, file := range []string{"cmdline", "cgroup"} {
				if data, err := os.ReadFile(filepath.Join(proc, file)); err == nil && marked(string(data)) {
					left = append(left, fmt.Sprintf("process %s: %q", proc, data))
				}
			}
		}
		if len(left) == 0 {
			return
		}
		time.Sleep(wait) // a killed process may not be reaped yet
	}
	t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
}

// Open implements ocitest.Node.
func (n *kernelNode) Open(t testing.TB) *oci.Runtime {
	t.Helper()
	return ocitest.Open(t, n.options(t))
}

// Spec implements ocitest.Node.
func (n *kernelNode) Spec(args ...string) *specs.Spec {
	spec := ocitest.Spec(args...)
	spec.Root.Path = n.rootfs
	spec.Process.Env = []string{"PATH=/"}
	spec.Mounts = []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc"},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"mode=755"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"newinstance", "ptmxmode=0666"}},
	}
	spec.Linux.Namespaces = append(spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.MountNamespace})
	return spec
}

// Processes implements ocitest.Node: it counts the processes whose cgroup has the
// container's name.
func (n *kernelNode) Processes(_ testing.TB, c *oci.Container) int {
	count := 0
	paths, _ := filepath.Glob("/proc/[0-9]*/cgroup")
	for _, path := range paths {
		data, err := os.ReadFile(path)
		stat, serr := os.ReadFile(filepath.Join(filepath.Dir(path), "stat"))
		zombie := serr != nil || strings.Contains(string(stat), ") Z ") || strings.Contains(string(stat), ") X ")
		if err == nil && !zombie && strings.Contains(string(data), c.ID()) {
			count++
		}
	}
	return count
}

// executor returns the PID of the node's executor.
func (n *kernelNode) executor(t testing.TB) int {
	t.Helper()
	paths, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(data), "\x00"+filepath.Join(n.state, "executor.sock")+"\x00") {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			if err != nil {
				t.Fatal(err)
			}
			return pid
		}
	}
	t.Fatal("there is no executor")
	return 0
}

// CrashExecutor implements ocitest.Node.
func (n *kernelNode) CrashExecutor(t testing.TB) {
	t.Helper()
	pid := n.executor(t)
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
		t.Fatal(err)
	}
	// A pidfd is readable when its process has ended (pidfd_open(2)).
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		got, err := unix.Poll(poll, int((30 * time.Second).Milliseconds()))
		if err == unix.EINTR {
			continue
		}
		if err != nil || got != 1 {
			t.Fatalf("executor does not end (err %v)", err)
		}
		return
	}
}

// The real executor passes the suite.
func TestSuiteOnKernel(t *testing.T) {
	testenv.NeedRoot(t, "it runs containers")
	ocitest.Suite(t, func(t *testing.T) ocitest.Node { return newKernelNode(t) })
}
