package test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/filetrace"
)

// Each system call that crispd, or its executor, makes in the life of a pod fails once:
// the first, the second, and so on until there are no more. A client that tries again as a
// kubelet does gets its pod, what it was told is true, and in the end nothing is left.
//
// That takes an hour. An ordinary run takes a few calls, and which error it is goes by
// turns; CRISP_NTH=full takes each call, CRISP_NTH=some every seventh, CRISP_NTH=errors
// each with each error, and CRISP_NTH=NUMBER begins with that call. Threads run as they
// like, so the n-th call is not the same in each run.
func TestNthCallOfDaemonFails(t *testing.T) {
	for _, daemon := range []string{"crispd", "executor"} {
		t.Run(daemon, func(t *testing.T) { nthOfPod(t, daemon) })
	}
}

// The same for an image that is pulled and removed.
func TestNthCallOfPullFails(t *testing.T) {
	n, config := startNode(t)
	if err := n.useRegistry(newRegistry()); err != nil {
		t.Fatal(err)
	}
	image, err := bigImage(1)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.push("app:latest", image); err != nil {
		t.Fatal(err)
	}
	n.restart(t, config, "")
	ref := n.registry.host() + "/app:latest"
	f := &failing{t: t, n: n, config: config, daemon: "crispd", stride: 40}
	f.each(func() error { return f.pulled(ref) })
}

func nthOfPod(t *testing.T, daemon string) {
	n, config := startNode(t)
	f := &failing{t: t, n: n, config: config, daemon: daemon, stride: 400}
	f.each(f.life)
}

// A failing is a node one of whose daemons has calls that fail.
type failing struct {
	t      *testing.T
	n      *node
	config string
	daemon string
	stride int

	inject *filetrace.Inject
	late   filetrace.Failure // that a call waited for in vain
	traced int               // PID
	pods   int
}

var injected = []syscall.Errno{unix.EIO, unix.ENOSPC, unix.EMFILE, unix.ENOMEM, unix.EINTR, filetrace.Hang}

// each has do done once for each call that fails.
func (f *failing) each(do func() error) {
	n := f.n
	n.expects(`"level":"ERROR"|level=ERROR`) // what cannot be done is said; panics are not expected
	first, all := 1, false
	switch how := os.Getenv("CRISP_NTH"); how {
	case "full", "errors":
		f.stride, all = 1, how == "errors"
	case "":
	case "some":
		f.stride = 7
	default:
		var err error
		if first, err = strconv.Atoi(how); err != nil {
			f.t.Fatalf("CRISP_NTH: %v", err)
		}
		f.stride = 1
	}
	f.attach()
	f.inject.Arm(0, 0)
	if err := do(); err != nil { // for what is made once
		f.t.Fatal(err)
	}
	f.inject.Disarm()
	began, files := time.Now(), f.files()
	failed, restarts, unlike := 0, 0, 0
	for i := first; unlike < 1+8/f.stride; i += f.stride {
		happened := false
		for k, errno := range injected {
			if !all && k != (i/f.stride)%len(injected) {
				continue
			}
			f.attach()
			f.late = filetrace.Failure{}
			f.inject.Arm(i, errno)
			err := do()
			what, alive := f.inject.Disarm()
			if f.late.Happened {
				what = f.late
			}
			if !alive {
				restarts++
				what.Happened = true
			}
			if err == nil && n.cmd != nil {
				err = n.withoutPods()
				if status.Code(err) == codes.Unavailable {
					// What failed came behind the last answer, and has ended the connection.
					err = n.withoutPods()
				}
			}
			if err != nil {
				f.t.Errorf("call %d of %s, %s (alive: %v): %v", i, f.daemon, what.What, alive, err)
				if n.cmd == nil {
					return
				}
				n.idle = nil // to be told once
				if err := n.takeIdle(); err != nil {
					f.t.Fatal(err)
				}
			}
			if what.Happened {
				happened = true
				failed++
			}
		}
		if happened {
			unlike = 0
		} else {
			unlike++ // how many there are differs from run to run
		}
	}
	f.attach()
	f.inject.Disarm()
	f.inject.Release()
	f.t.Logf("%d calls of %s failed in %v, it ended %d times", failed, f.daemon, time.Since(began).Round(time.Second), restarts)
	if more := f.more(files); restarts == 0 && len(more) > 0 {
		f.t.Errorf("open files of %s that were not: %v", f.daemon, more)
	}
}

// attach traces the daemon, started again if it has ended.
func (f *failing) attach() {
	f.t.Helper()
	f.revive()
	pid := f.pid()
	if pid == f.traced {
		return
	}
	if f.inject != nil {
		f.inject.Release()
	}
	f.inject, f.traced = filetrace.Attach(f.t, pid), pid
	f.n.idle = nil // who traces is there too
	if err := f.n.takeIdle(); err != nil {
		f.t.Fatal(err)
	}
}

func (f *failing) pid() int {
	if f.daemon == "crispd" {
		return f.n.cmd.Process.Pid
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if pid, err := f.n.executorPid(); err == nil {
			return pid
		}
		if time.Now().After(deadline) {
			f.t.Fatal("no executor runs")
		}
	}
}

// revive does what a service manager does.
func (f *failing) revive() {
	f.t.Helper()
	select {
	case <-f.n.exited:
		f.n.remember()
		f.n.conn.Close()
		f.n.cmd = nil
		if err := f.n.start(f.config, nil); err != nil {
			f.t.Fatal(err)
		}
	default:
	}
}

// files are the open files of the traced daemon, by what they are.
func (f *failing) files() map[string]int {
	m := map[string]int{}
	entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", f.traced))
	for _, e := range entries {
		link, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", f.traced, e.Name()))
		if err != nil {
			continue
		}
		kind, inode, _ := strings.Cut(link, ":[")
		switch kind {
		case "socket":
			kind = f.socket(strings.TrimSuffix(inode, "]"))
		case "anon_inode": // anon_inode:[eventfd]
			if kind = link; f.isStalePidfd(e.Name()) {
				kind = stalePidfd
			}
		}
		m[kind]++
	}
	return m
}

// A stalePidfd is of a process that has been reaped. libcontainer finds its child with
// os.FindProcess and does not release it: only the garbage collector closes that, within
// two minutes on an executor that has nothing to do.
const stalePidfd = "pidfd of a process that is gone"

func (f *failing) isStalePidfd(fd string) bool {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", f.traced, fd))
	return strings.Contains(string(data), "\nPid:\t-1\n")
}

// socket says of which family a socket of the traced daemon is, and where it is bound.
func (f *failing) socket(inode string) string {
	for _, family := range []string{"unix", "netlink", "tcp", "tcp6", "udp", "packet"} {
		data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", f.traced, family))
		for line := range strings.Lines(string(data)) {
			if fields := strings.Fields(line); slices.Contains(fields, inode) {
				if last := fields[len(fields)-1]; strings.HasPrefix(last, "/") {
					return family + " socket " + last
				}
				return family + " socket"
			}
		}
	}
	return "socket of another namespace"
}

// more says which kinds of files are more than they were, after a while too. An ordinary
// run does not wait for the garbage collector.
func (f *failing) more(before map[string]int) (list []string) {
	patience := 40 * time.Second
	if f.stride == 1 {
		patience = 150 * time.Second
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		list = nil
		for kind, n := range f.files() {
			if n > before[kind] && (kind != stalePidfd || f.stride == 1) {
				list = append(list, fmt.Sprintf("%d × %s", n-before[kind], kind))
			}
		}
		slices.Sort(list)
		if len(list) == 0 || time.Now().After(deadline) {
			return list
		}
	}
}

// nthPatience is how long a client waits for one call, nthTries how often it calls.
const (
	nthPatience = 3 * time.Second
	nthTries    = 6
)

// try calls as a kubelet does: again after a pause, if it failed. What hangs does so until
// the client has left.
func (f *failing) try(what string, call func(ctx context.Context) error) error {
	var errs []error
	for i := range nthTries {
		f.revive()
		ctx, cancel := context.WithTimeout(f.t.Context(), nthPatience)
		err := call(ctx)
		late := ctx.Err() != nil
		cancel()
		if err == nil {
			return nil
		}
		errs = append(errs, fmt.Errorf("try %d: %w", i+1, err))
		if late {
			if what, _ := f.inject.Disarm(); what.Happened { // what hung goes on
				f.late = what
			}
			f.inject.Arm(0, 0)
		}
		time.Sleep(time.Duration(i) * 100 * time.Millisecond)
	}
	return fmt.Errorf("%s: %w", what, errors.Join(errs...))
}

// life is a pod's, as a kubelet has it: what could not be made is asked for again, and a
// container that could not be started gets a successor.
func (f *failing) life() error {
	n := f.n
	f.pods++
	name := "p" + strconv.Itoa(f.pods)
	pod, err := n.sandboxConfig(name, nil)
	if err != nil {
		return err
	}
	err = f.try("run sandbox", func(ctx context.Context) error {
		r, err := n.runtime().RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: pod})
		if err == nil {
			n.ids[name], n.sandboxes[name] = r.PodSandboxId, pod
		}
		return err
	})
	if err != nil {
		return err
	}
	attempt := 0
	err = f.try("run container", func(ctx context.Context) error {
		c := name + "-" + strconv.Itoa(attempt)
		if err := n.createContainer(ctx, []string{name, c, "--", "testbin", "print", "here", "sleep", "for-ever"}); err != nil {
			return err
		}
		attempt++
		_, err := n.runtime().StartContainer(ctx, &cri.StartContainerRequest{ContainerId: n.ids[c]})
		if err != nil {
			return err
		}
		n.ids[name+"-c"] = n.ids[c]
		return nil
	})
	if err != nil {
		return err
	}
	id := n.ids[name+"-c"]
	err = f.try("status", func(ctx context.Context) error {
		s, err := n.runtime().ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id})
		if err == nil && s.Status.State != cri.ContainerState_CONTAINER_RUNNING {
			return fmt.Errorf("a container that was started is %v, %s", s.Status.State, s.Status.Message)
		}
		return err
	})
	if err != nil {
		return err
	}
	err = f.try("exec", func(ctx context.Context) error {
		r, err := n.runtime().ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: id, Cmd: []string{"/testbin", "print", "there", "exit", "3"}, Timeout: 4})
		if err == nil && (string(r.Stdout) != "there\n" || r.ExitCode != 3) {
			return fmt.Errorf("an exec answered %q, %d", r.Stdout, r.ExitCode)
		}
		return err
	})
	if err != nil {
		return err
	}
	err = f.try("stop container", func(ctx context.Context) error {
		_, err := n.runtime().StopContainer(ctx, &cri.StopContainerRequest{ContainerId: id, Timeout: 0})
		return err
	})
	if err != nil {
		return err
	}
	err = f.try("status", func(ctx context.Context) error {
		s, err := n.runtime().ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id})
		if err == nil && (s.Status.State != cri.ContainerState_CONTAINER_EXITED || s.Status.ExitCode != 137) {
			return fmt.Errorf("a container that was stopped is %v with %d", s.Status.State, s.Status.ExitCode)
		}
		return err
	})
	if err != nil {
		return err
	}
	var pods []*cri.PodSandbox
	err = f.try("list", func(ctx context.Context) error {
		r, err := n.runtime().ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
		pods = r.GetItems()
		return err
	})
	if err != nil {
		return err
	}
	for _, sb := range pods {
		if err := f.try("stop sandbox", func(ctx context.Context) error {
			_, err := n.runtime().StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: sb.Id})
			return err
		}); err != nil {
			return err
		}
		if err := f.try("remove sandbox", func(ctx context.Context) error {
			_, err := n.runtime().RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: sb.Id})
			return err
		}); err != nil {
			return err
		}
	}
	return f.try("list", func(ctx context.Context) error {
		r, err := n.runtime().ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
		if err == nil && len(r.Items) > 0 {
			return fmt.Errorf("pods that were removed are listed: %v", r.Items)
		}
		return err
	})
}

// pulled pulls the image, finds it whole, and removes it.
func (f *failing) pulled(ref string) error {
	n := f.n
	spec := &cri.ImageSpec{Image: ref}
	err := f.try("pull", func(ctx context.Context) error {
		_, err := n.images().PullImage(ctx, &cri.PullImageRequest{Image: spec})
		return err
	})
	if err != nil {
		return err
	}
	err = f.try("image status", func(ctx context.Context) error {
		r, err := n.images().ImageStatus(ctx, &cri.ImageStatusRequest{Image: spec})
		if err == nil && r.Image == nil {
			return errors.New("an image that was pulled is not there")
		}
		return err
	})
	if err != nil {
		return err
	}
	err = f.try("remove image", func(ctx context.Context) error {
		_, err := n.images().RemoveImage(ctx, &cri.RemoveImageRequest{Image: spec})
		if status.Code(err) == codes.NotFound {
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	var left []string
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if left, err = filepath.Glob(filepath.Join(n.root, "images", "staging", "*")); err != nil || len(left) == 0 {
			return err
		}
	}
	return fmt.Errorf("left of a pull: %v", left)
}
