package oci_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/test/ocitest"
)

// sameNamespace reports whether two paths refer to one namespace.
func sameNamespace(t *testing.T, a, b string) bool {
	t.Helper()
	var one, two unix.Stat_t
	if err := errors.Join(unix.Stat(a, &one), unix.Stat(b, &two)); err != nil {
		t.Fatal(err)
	}
	return one.Dev == two.Dev && one.Ino == two.Ino
}

// joined adds the sandbox's namespaces to a spec.
func joined(sb *oci.Sandbox, spec *specs.Spec) *specs.Spec {
	for kind, t := range map[string]specs.LinuxNamespaceType{
		"net": specs.NetworkNamespace, "uts": specs.UTSNamespace, "ipc": specs.IPCNamespace,
	} {
		if path := sb.NamespacePath(kind); path != "" {
			spec.Linux.Namespaces = append(spec.Linux.Namespaces, specs.LinuxNamespace{Type: t, Path: path})
		}
	}
	return spec
}

// create makes a container and returns it with the path of its log.
func (n *kernelNode) create(t testing.TB, r *oci.Runtime, sb *oci.Sandbox, spec *specs.Spec) (*oci.Container, string) {
	t.Helper()
	id := oci.NewID()
	spec.Linux.CgroupsPath = ocitest.CgroupsPath(sb, id)
	log := filepath.Join(n.dir, id+".log")
	c, err := r.Create(t.Context(), oci.ContainerConfig{ID: id, SandboxID: sb.ID(), Spec: spec, LogPath: log})
	if err != nil {
		t.Fatal(err)
	}
	return c, log
}

// output runs testbin in the sandbox and returns its lines.
func (n *kernelNode) output(t *testing.T, r *oci.Runtime, sb *oci.Sandbox, args ...string) []string {
	t.Helper()
	c, log := n.create(t, r, sb, joined(sb, n.Spec(args...)))
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-c.Done()
	data, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(data)) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4)
		lines = append(lines, fields[3])
	}
	return lines
}

// A sandbox has namespaces of its own, with the requested hostname and sysctls; those of the
// caller are unchanged; nothing is left.
func TestSandboxNamespaces(t *testing.T) {
	n := newKernelNode(t)
	r := n.Open(t)
	hostname, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	before := readFile(t, "/proc/sys/net/ipv4/ip_unprivileged_port_start")
	sb, err := r.CreateSandbox(t.Context(), oci.SandboxConfig{
		Hostname: "pod", Sysctls: map[string]string{
			"net.ipv4.ip_unprivileged_port_start": "77", "kernel.shm_rmid_forced": "1", "kernel.domainname": "example",
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Ready(nil); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"net", "uts", "ipc"} {
		if sameNamespace(t, sb.NamespacePath(kind), "/proc/self/ns/"+kind) {
			t.Errorf("%s namespace is the host's", kind)
		}
	}
	if sb.NamespacePath("pid") != "" || sb.NamespacePath("mnt") != "" {
		t.Error("sandbox has namespaces that were not requested")
	}
	got := n.output(t, r, sb, "hostname",
		"cat", "/proc/sys/net/ipv4/ip_unprivileged_port_start", "cat", "/proc/sys/kernel/shm_rmid_forced", "cat", "/proc/sys/kernel/domainname")
	if want := "pod 77 1 example"; strings.Join(got, " ") != want {
		t.Errorf("in the sandbox: %q, want %q", got, want)
	}
	if now, err := os.Hostname(); now != hostname || err != nil {
		t.Errorf("the host's name was %q, is %q", hostname, now)
	}
	if now := readFile(t, "/proc/sys/net/ipv4/ip_unprivileged_port_start"); now != before {
		t.Errorf("the host's sysctl was %q, is %q", before, now)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(sb.ShmDir(), &st); err != nil || st.Type != unix.TMPFS_MAGIC || st.Blocks*uint64(st.Bsize) != 64<<20 {
		t.Errorf("shm is %+v (err %v)", st, err)
	}
	if fi, err := os.Stat(sb.ShmDir()); err != nil || fi.Mode()&(os.ModePerm|os.ModeSticky) != 0o777|os.ModeSticky {
		t.Errorf("shm has mode %v (err %v)", fi.Mode(), err)
	}
	// No mount namespace that shares our mounts may see the pins.
	for line := range strings.Lines(readFile(t, "/proc/self/mountinfo")) {
		if strings.Contains(line, n.state) && strings.Contains(line, "shared:") {
			t.Errorf("the pin is on a shared mount: %s", line)
		}
	}

	// After Unpin while a container runs, the paths stay the same, and the namespaces end
	// with the last process.
	path := sb.NetNS()
	for range 2 {
		if err := errors.Join(sb.BeginStop(), sb.Unpin(t.Context()), sb.Stopped()); err != nil {
			t.Fatal(err)
		}
	}
	if sb.NetNS() != path {
		t.Errorf("path was %s, is %s", path, sb.NetNS())
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("pin is still there (err %v)", err)
	}
	if err := r.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// A sandbox on the host's network has the host's hostname, and must not set sysctls of the
// network.
func TestHostNetwork(t *testing.T) {
	n := newKernelNode(t)
	r := n.Open(t)
	host := oci.SandboxConfig{HostNetwork: true, HostIPC: true, Hostname: "ignored"}
	host.Sysctls = map[string]string{"net.ipv4.ip_forward": "1"}
	if _, err := r.CreateSandbox(t.Context(), host); !errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "net.ipv4.ip_forward") {
		t.Errorf("got %v", err)
	}
	host.Sysctls = nil
	sb, err := r.CreateSandbox(t.Context(), host)
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Ready(nil); err != nil {
		t.Fatal(err)
	}
	if sb.NetNS() != "" || sb.NamespacePath("uts") != "" || sb.NamespacePath("ipc") != "" || sb.ShmDir() != "/dev/shm" {
		t.Errorf("paths are %q, %q", sb.NetNS(), sb.ShmDir())
	}
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if got := n.output(t, r, sb, "hostname"); len(got) != 1 || got[0] != name {
		t.Errorf("hostname is %q, want %q", got, name)
	}
	if err := r.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// When the kernel refuses a setting, the error names it, the creation is undone, and later
// sandboxes are not affected.
func TestSandboxRefusedByKernel(t *testing.T) {
	n := newKernelNode(t)
	r := n.Open(t)
	cfg := oci.SandboxConfig{Name: "name"}
	for name, value := range map[string]string{"net.ipv4.no_such_thing": "1", "net.ipv4.ip_local_port_range": "low", "kernel.shmmni": "99999999999999999999"} {
		cfg.Sysctls = map[string]string{name: value}
		if _, err := r.CreateSandbox(t.Context(), cfg); !errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	cfg.Sysctls = nil
	cfg.Hostname = strings.Repeat("x", 65)
	if _, err := r.CreateSandbox(t.Context(), cfg); !errors.Is(err, fault.Invalid) {
		t.Errorf("got %v", err)
	}
	if len(r.Sandboxes()) != 0 {
		t.Error("a sandbox whose creation failed is listed")
	}
	cfg.Hostname = ""
	sb, err := r.CreateSandbox(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Making many sandboxes at once leaves no thread of crispd in another namespace: one in a pod's
// network would be a leak that no sweep can find.
func TestNamespacesStayOnTheirThreads(t *testing.T) {
	n := newKernelNode(t)
	r := n.Open(t)
	mine, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if _, err := r.CreateSandbox(t.Context(), oci.SandboxConfig{}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for wait := time.Millisecond; ; wait *= 2 {
		strayed := 0
		tasks, err := filepath.Glob("/proc/self/task/*/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		for _, task := range tasks {
			if its, err := os.Readlink(task); err == nil && its != mine {
				strayed++
			}
		}
		if strayed == 0 {
			break
		}
		if wait > 30*time.Second {
			t.Fatalf("%d of %d threads are in another network namespace", strayed, len(tasks))
		}
		time.Sleep(wait) // a thread may be about to end
	}
	if err := r.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// The counters are those of the container and of its sandbox's cgroup, and limits can be
// changed while it runs.
func TestStatsAndUpdate(t *testing.T) {
	n := newKernelNode(t)
	r := n.Open(t)
	sb, err := r.CreateSandbox(t.Context(), oci.SandboxConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Ready(nil); err != nil {
		t.Fatal(err)
	}
	c, log := n.create(t, r, sb, n.Spec("eat", "16", "print", "fed", "sleep", "for-ever"))
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for wait := time.Millisecond; ; wait *= 2 {
		if data, err := os.ReadFile(log); err == nil && bytes.Contains(data, []byte("fed")) {
			break
		}
		if wait > 30*time.Second {
			t.Fatal("container does not start")
		}
		time.Sleep(wait)
	}
	for what, read := range map[string]func() (oci.Stats, error){"container": c.Stats, "sandbox": sb.Usage} {
		var s oci.Stats
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
			var err error
			if s, err = read(); err != nil {
				t.Fatal(err)
			}
			// cgroup v1 updates memory.stat every two seconds, or when enough has changed.
			if s.Memory.RSS >= 16<<20 || time.Now().After(deadline) {
				break
			}
		}
		if s.CPU.UsageNs == 0 || s.Memory.RSS < 16<<20 || s.Memory.WorkingSet < 16<<20 || s.Pids.Current == 0 || s.At.IsZero() {
			t.Errorf("%s: %+v", what, s)
		}
	}
	limit := int64(64 << 20)
	res := &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit}}
	if err := c.Apply(t.Context(), oci.Change{Resources: res}); err != nil {
		t.Fatal(err)
	}
	if s, err := c.Stats(); err != nil || s.Memory.Limit != uint64(limit) || s.Memory.Available == 0 || s.Memory.Available >= uint64(limit) {
		t.Errorf("after the update: %+v (err %v)", s.Memory, err)
	}
	if got := c.Config().Spec.Linux.Resources.Memory.Limit; got == nil || *got != limit {
		t.Errorf("the spec says %v", got)
	}
	if err := r.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := sb.Usage(); !errors.Is(err, fault.WrongState) {
		t.Errorf("counters of a removed sandbox: %v", err)
	}
}

// A container can join another's PID namespace, and sees its processes.
func TestPIDTargetOnKernel(t *testing.T) {
	n := newKernelNode(t)
	r := n.Open(t)
	sb, err := r.CreateSandbox(t.Context(), oci.SandboxConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Ready(nil); err != nil {
		t.Fatal(err)
	}
	target, _ := n.create(t, r, sb, n.Spec("sleep", "for-ever"))
	if err := target.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	id := oci.NewID()
	spec := n.Spec("sleep", "for-ever")
	spec.Linux.CgroupsPath = ocitest.CgroupsPath(sb, id)
	c, err := r.Create(t.Context(), oci.ContainerConfig{ID: id, SandboxID: sb.ID(), Spec: spec, PIDTarget: target.ID()})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	ns := func(c *oci.Container) string { return fmt.Sprintf("/proc/%d/ns/pid", c.Status().Pid) }
	if !sameNamespace(t, ns(c), ns(target)) {
		t.Error("the namespace is not the target's")
	}
	if err := r.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A damaged record affects only its own pod, and everything of that pod in the kernel is
// removed.
func TestDamagedRecordOnKernel(t *testing.T) {
	n := newKernelNode(t)
	r := n.Open(t)
	var sandboxes []*oci.Sandbox
	var containers []*oci.Container
	for range 2 {
		sb, err := r.CreateSandbox(t.Context(), oci.SandboxConfig{SharedPID: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := sb.Ready(nil); err != nil {
			t.Fatal(err)
		}
		c, _ := n.create(t, r, sb, joined(sb, n.Spec("sleep", "for-ever")))
		if err := c.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		sandboxes, containers = append(sandboxes, sb), append(containers, c)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"containers/" + containers[0].ID(), "sandboxes/" + sandboxes[0].ID()} {
		path = filepath.Join(n.root, path, "record.json")
		data := []byte(readFile(t, path))
		data[len(data)/2] ^= 0x20
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r = n.Open(t)
	if got := r.Containers(); len(got) != 1 || got[0].ID() != containers[1].ID() || got[0].Status().State != oci.Running {
		t.Errorf("containers are %v", got)
	}
	if got := r.Sandboxes(); len(got) != 1 || got[0].ID() != sandboxes[1].ID() || got[0].State() != oci.SandboxReady {
		t.Errorf("sandboxes are %v", got)
	}
	if left := n.Processes(t, containers[0]); left != 0 {
		t.Errorf("%d processes are left", left)
	}
	for line := range strings.Lines(readFile(t, "/proc/self/mountinfo")) {
		if strings.Contains(line, sandboxes[0].ID()) {
			t.Errorf("is left: %s", line)
		}
	}
	if aside, _ := filepath.Glob(filepath.Join(n.root, "quarantine", "*")); len(aside) != 2 {
		t.Errorf("records set aside: %v", aside)
	}
	if err := r.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
}
