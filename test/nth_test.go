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

	"github.com/crisp-cri/crisp/test/filetrace"
)

// Each system call of crispd, or of its executor, during the life of a pod fails once: the first,
// the second, and so on until there are no more. A client that retries as the kubelet does gets its
// pod, the answers that it got are true, and in the end nothing is left.
//
// That takes an hour. A normal run makes a few calls fail, with varying errors; CRISP_NTH=full
// covers each call, CRISP_NTH=some every seventh, CRISP_NTH=errors each with each error, and
// CRISP_NTH=NUMBER starts with that call. Threads run in any order, so the n-th call differs
// between runs.
func TestNthCallOfDaemonFails(t *testing.T) {
	for _, daemon := range []string{"crispd", "executor"} {
		t.Run(daemon, func(t *testing.T) { nthOfPod(t, daemon) })
	}
}

// The same for the pull and the removal of an image.
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

// Nothing can be forked, or executed, in crispd or its executor, from the first, the second, … such
// call of a pod's life on, as where a limit of processes is reached. The client is told at once, what
// it has not got can be removed at once, and when the shortage is over it gets its pod.
func TestNthForkOfDaemonFails(t *testing.T) {
	for name, f := range map[string]failing{
		"crispd":          {daemon: "crispd"},
		"executor":        {daemon: "executor", sandbox: []string{"share-pid"}},
		"executor, a tty": {daemon: "executor", container: []string{"tty"}},
	} {
		t.Run(name, func(t *testing.T) {
			f.t, f.forks = t, true
			f.n, f.config = startNode(t, countingPlugins)
			f.eachFork()
			if left, _ := filepath.Glob(filepath.Join(f.n.work, "attached", "*")); len(left) > 0 {
				t.Errorf("attached to networks, and not detached: %v", left)
			}
		})
	}
}

// countingPlugins configures a network of two plugins, which keep a file for each attachment in
// attached.
func countingPlugins(n *node, config string) error {
	at := filepath.Join(n.work, "attached")
	plugin := "#!/bin/sh\ncat >/dev/null\nfile=" + at + "/$CNI_CONTAINERID.${0##*/}\ncase $CNI_COMMAND in\nADD) >$file; echo '{\"cniVersion\":\"1.0.0\",\"ips\":[{\"address\":\"10.99.0.2/24\"}]}';;\nDEL) rm -f $file;;\nVERSION) echo '{\"cniVersion\":\"1.0.0\",\"supportedVersions\":[\"1.0.0\"]}';;\nesac\n"
	for path, text := range map[string]string{
		"attached/none": "", "bin/one": plugin, "bin/two": plugin,
		"net.d/1.conflist": `{"cniVersion":"1.0.0","name":"counting","plugins":[{"type":"one"},{"type":"two"}]}`,
	} {
		path = filepath.Join(n.work, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
			return err
		}
	}
	if err := os.Remove(filepath.Join(at, "none")); err != nil {
		return err
	}
	return os.WriteFile(config, fmt.Appendf(nil, "%s[cni]\nconf_dir = %q\nbin_dirs = [%q]\n", withInit(""), n.work+"/net.d", n.work+"/bin"), 0o644)
}

// eachFork lives once for each call from which on they fail.
func (f *failing) eachFork() {
	f.n.expects(`"level":"ERROR"|level=ERROR`)
	f.attach()
	f.inject.Arm(0, 0)
	if err := f.life(); err != nil {
		f.t.Fatal(err)
	}
	f.inject.Disarm()
	files, failed := f.files(), 0
	for happened := true; happened; failed++ {
		f.late = filetrace.Failure{}
		f.inject.ArmAll(failed+1, []syscall.Errno{unix.EAGAIN, unix.ENOMEM}[failed%2])
		err := f.life()
		what, alive := f.inject.Disarm()
		if f.late.Happened {
			what = f.late
		}
		if err == nil {
			err = f.n.withoutPods()
		}
		if err != nil || !alive {
			f.t.Fatalf("from call %d of %s on, %s (alive: %v): %v", failed+1, f.daemon, what.What, alive, err)
		}
		happened = what.Happened
	}
	f.inject.Release()
	f.t.Logf("%d calls of %s failed", failed-1, f.daemon)
	if more := f.more(files); len(more) > 0 {
		f.t.Errorf("new open files of %s: %v", f.daemon, more)
	}
}

// A failing is a node with a daemon whose system calls are made to fail.
type failing struct {
	t      *testing.T
	n      *node
	config string
	daemon string
	stride int

	forks              bool     // make all forks fail from one on, until a call has failed
	sandbox, container []string // their options

	inject *filetrace.Inject
	late   filetrace.Failure // the last one for which a client gave up
	traced int               // PID
	pods   int
}

var injected = []syscall.Errno{unix.EIO, unix.ENOSPC, unix.EMFILE, unix.ENOMEM, unix.EINTR, filetrace.Hang}

// each calls do once for each call that fails.
func (f *failing) each(do func() error) {
	n := f.n
	n.expects(`"level":"ERROR"|level=ERROR`) // failures are logged; panics are not expected
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
	if err := do(); err != nil { // the first run makes one-time objects
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
					// The failure came after the last answer, and has broken the
					// connection.
					err = n.withoutPods()
				}
			}
			if err != nil {
				f.t.Errorf("call %d of %s, %s (alive: %v): %v", i, f.daemon, what.What, alive, err)
				if n.cmd == nil {
					return
				}
				n.idle = nil // so that it is reported only once
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
			unlike++ // the number of calls differs between runs
		}
	}
	f.attach()
	f.inject.Disarm()
	f.inject.Release()
	f.t.Logf("%d calls of %s failed in %v, it ended %d times", failed, f.daemon, time.Since(began).Round(time.Second), restarts)
	if more := f.more(files); restarts == 0 && len(more) > 0 {
		f.t.Errorf("new open files of %s: %v", f.daemon, more)
	}
}

// attach traces the daemon, which it restarts if it has ended.
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
	trace := filetrace.Attach
	if f.forks {
		trace = filetrace.AttachForks
	}
	f.inject, f.traced = trace(f.t, pid), pid
	f.n.idle = nil // it would not include the tracer
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

// revive restarts crispd if it has ended, as a service manager does.
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

// files counts the open files of the traced daemon by kind.
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
		case "/":
			if f.isProc(e.Name()) {
				kind = ownProc
			}
		}
		m[kind]++
	}
	return m
}

// A stalePidfd is a pidfd of a reaped process. libcontainer finds its child with
// os.FindProcess and does not release it, so that only the garbage collector closes the
// pidfd, within two minutes if the executor is idle.
const stalePidfd = "pidfd of a process that is gone"

func (f *failing) isStalePidfd(fd string) bool {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", f.traced, fd))
	return strings.Contains(string(data), "\nPid:\t-1\n")
}

// An ownProc is a proc file system that is mounted nowhere. filepath-securejoin opens one for
// libcontainer and keeps it: at its first start of a container, which happens only if the fast init
// has failed.
const ownProc = "proc of its own"

func (f *failing) isProc(fd string) bool {
	var fs unix.Statfs_t
	err := unix.Statfs(fmt.Sprintf("/proc/%d/fd/%s", f.traced, fd), &fs)
	return err == nil && fs.Type == unix.PROC_SUPER_MAGIC
}

// socket returns the family of a socket of the traced daemon, and its address.
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

// more returns the kinds of files that have more open ones than before, after some patience. An
// ordinary run does not wait for the garbage collector.
func (f *failing) more(before map[string]int) (list []string) {
	patience := 40 * time.Second
	if f.stride == 1 {
		patience = 150 * time.Second
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		list = nil
		for kind, n := range f.files() {
			if kind == ownProc && n == 1 {
				continue
			}
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

// nthPatience is the client's timeout of a call, nthTries how often it calls.
const (
	nthPatience = 3 * time.Second
	nthTries    = 6
)

// try calls as the kubelet does: again after a pause if the call has failed. A system call
// that hangs does so until the client has given up.
func (f *failing) try(what string, call func(ctx context.Context) error) error {
	var errs []error
	for i := range nthTries {
		f.revive()
		ctx, cancel := context.WithTimeout(f.t.Context(), nthPatience)
		err := call(ctx)
		late := ctx.Err() != nil
		if f.forks && err != nil { // the shortage is over
			if what, _ := f.inject.Disarm(); what.Happened {
				f.late = what
			}
			if late {
				f.t.Errorf("%s: %s is not reported at once: %v", what, f.late.What, err)
			}
			late = true
		}
		cancel()
		if err == nil {
			return nil
		}
		errs = append(errs, fmt.Errorf("try %d: %w", i+1, err))
		if late {
			if what, _ := f.inject.Disarm(); what.Happened { // a call that hung continues
				f.late = what
			}
			f.inject.Arm(0, 0)
		}
		time.Sleep(time.Duration(i) * 100 * time.Millisecond)
	}
	return fmt.Errorf("%s: %w", what, errors.Join(errs...))
}

// life takes a pod through its life as the kubelet does: what could not be made is
// requested again, and a container that could not be started is replaced.
func (f *failing) life() error {
	n := f.n
	f.pods++
	name := "p" + strconv.Itoa(f.pods)
	pod, err := n.sandboxConfig(name, f.sandbox)
	if err != nil {
		return err
	}
	err = f.try("run sandbox", func(ctx context.Context) error {
		r, err := n.runtime().RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: pod})
		if err == nil {
			n.ids[name], n.sandboxes[name] = r.PodSandboxId, pod
		} else if f.forks {
			pod.Metadata.Attempt++ // where no plugin can be run, one that cannot be detached stays, and is removed later
		}
		return err
	})
	if err != nil {
		return err
	}
	attempt := 0
	err = f.try("run container", func(ctx context.Context) error {
		c := name + "-" + strconv.Itoa(attempt)
		options := append([]string{name, c}, f.container...)
		if err := n.createContainer(ctx, append(options, "--", "testbin", "print", "here", "sleep", "for-ever")); err != nil {
			return err
		}
		attempt++
		_, err := n.runtime().StartContainer(ctx, &cri.StartContainerRequest{ContainerId: n.ids[c]})
		if err != nil && f.forks { // nothing needs to be forked to remove it
			_, rerr := n.runtime().RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: n.ids[c]})
			if rerr != nil {
				f.t.Errorf("a container that was not started, %v, cannot be removed: %v", err, rerr)
			}
		}
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

// pulled pulls the image, checks that it is complete, and removes it.
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
