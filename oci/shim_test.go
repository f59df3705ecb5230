package oci_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/test/ocitest"
	"github.com/crisp-cri/crisp/test/testenv"
)

// A shimNode is the kernel, with containers in containerd's shim for runc.
type shimNode struct{ *kernelNode }

// Shim implements ocitest.ShimNode.
func (shimNode) Shim() *oci.Shim {
	return &oci.Shim{Path: filepath.Join(testenv.Shims(), "containerd-shim-runc-v2")}
}

// The containers of a shim pass the suite.
func TestSuiteInShim(t *testing.T) {
	testenv.NeedRoot(t, "it runs containers")
	testenv.Need(t, "shims")
	testenv.RemoveShimDirs(t)
	ocitest.Suite(t, func(t *testing.T) ocitest.Node { return shimNode{newKernelNode(t)} })
}

// shimPod returns a Runtime with a sandbox in a shim.
func shimPod(t *testing.T) (shimNode, *oci.Runtime, *oci.Sandbox) {
	t.Helper()
	testenv.NeedRoot(t, "it runs containers")
	testenv.Need(t, "shims")
	testenv.RemoveShimDirs(t)
	n := shimNode{newKernelNode(t)}
	r := n.Open(t)
	sb, err := r.CreateSandbox(t.Context(), oci.SandboxConfig{Hostname: "pod", Shim: n.Shim()})
	if err == nil {
		err = sb.StartShim(t.Context(), n.Spec("sleep", "for-ever"), nil)
	}
	if err == nil {
		err = sb.Ready(nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return n, r, sb
}

// run starts a container in a sandbox with a shim.
func (n shimNode) run(t *testing.T, r *oci.Runtime, sb *oci.Sandbox, args ...string) *oci.Container {
	t.Helper()
	cfg := oci.ContainerConfig{ID: oci.NewID(), SandboxID: sb.ID(), Spec: n.Spec(args...)}
	cfg.Spec.Linux.CgroupsPath = ocitest.CgroupsPath(sb, cfg.ID)
	c, err := r.Create(t.Context(), cfg)
	if err == nil {
		err = c.Start(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A pod whose shim is killed ends with a reason that names it: its containers, then the pod, which can
// be removed and made anew.
func TestShimDiesUnderAPod(t *testing.T) {
	n, r, sb := shimPod(t)
	c := n.run(t, r, sb, "sleep", "for-ever")
	if c.Config().Shim == nil || c.Config().Shim.Sandbox != sb.ID() {
		t.Errorf("the container has the shim %+v", c.Config().Shim)
	}
	for _, pid := range shimsBelow(n.state) {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	<-c.Done()
	if st := c.Status(); st.ExitCode != 137 || st.Reason != "ShimGone" || !strings.Contains(st.Message, n.Shim().Path) {
		t.Errorf("it ended with %+v", st)
	}
	for deadline := time.Now().Add(time.Minute); sb.State() == oci.SandboxReady; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the sandbox stays ready")
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, err := range []error{c.Remove(ctx), sb.BeginStop(), sb.Unpin(ctx), sb.Stopped(), sb.Remove(ctx), r.Shutdown(ctx)} {
		if err != nil {
			t.Error(err)
		}
	}
}

// shimsBelow returns the shims whose bundles are in a state directory.
func shimsBelow(state string) (pids []int) {
	links, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range links {
		pid := pidOf(link)
		if to := linked(link); pid > 0 && strings.HasPrefix(to, state+"/executor/bundles/") {
			pids = append(pids, pid)
		}
	}
	return pids
}

// What a shim cannot do is refused, and says so.
func TestShimRefuses(t *testing.T) {
	n, r, sb := shimPod(t)
	c := n.run(t, r, sb, "sleep", "for-ever")
	if f, err := r.Freeze(t.Context(), []*oci.Container{c}, filepath.Join(n.dir, "scratch")); err == nil { // there is CRIU
		if err := errors.Join(f.Thaw(t.Context()), f.Close()); err != nil {
			t.Errorf("thaw: %v", err)
		}
	} else if fault.KindOf(err) != fault.WrongState || !strings.Contains(err.Error(), "CRIU") {
		t.Errorf("freeze: %v", err)
	}
	if _, err := r.CreateSandbox(t.Context(), oci.SandboxConfig{SharedPID: true, Shim: n.Shim()}); fault.KindOf(err) != fault.Invalid {
		t.Errorf("sandbox with a PID namespace: %v", err)
	}
	cfg := oci.ContainerConfig{SandboxID: sb.ID(), Spec: n.Spec("exit", "0"), PIDTarget: c.ID()}
	if _, err := r.Create(t.Context(), cfg); fault.KindOf(err) != fault.Invalid {
		t.Errorf("container with a target: %v", err)
	}
	if s, err := c.Usage(); err != nil || s.Memory.Usage == 0 || s.Pids.Current == 0 {
		t.Errorf("counters: %+v, %v", s, err)
	}
	if err := r.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

func pidOf(link string) int {
	pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(link)))
	return pid
}

func linked(link string) string {
	to, _ := os.Readlink(link)
	return to
}
