package test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/test/testenv"
)

// installedNode returns the instance of the installed Debian package: `make test-vm`
// installs it, and sets CRISP_DEB and CRISP_NEXT_DEB, a package of a later version.
func installedNode(t *testing.T) (n *node, deb, next string) {
	t.Helper()
	deb, next = os.Getenv("CRISP_DEB"), os.Getenv("CRISP_NEXT_DEB")
	if deb == "" || next == "" {
		t.Skip("needs a machine of its own with crisp's package installed: make test-vm")
	}
	n, err := newNode(t.TempDir(), buildOnce(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(n.dir) })
	n.root, n.state, n.socket = "/var/lib/crisp", "/run/crisp", "/run/crisp/crisp.sock"
	n.conn, err = grpc.NewClient("unix://"+n.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.conn.Close() })
	n.installed(t, deb)
	return n, deb, next
}

// installed installs a package, as a user would.
func (n *node) installed(t *testing.T, deb string) {
	t.Helper()
	if out, err := exec.Command("dpkg", "-i", deb).CombinedOutput(); err != nil {
		journal, _ := exec.Command("journalctl", "-u", "crisp.service", "-n", "30", "--no-pager").Output()
		t.Fatalf("dpkg -i %s: %v\n%s\n%s", deb, err, out, journal)
	}
}

// pods starts as many pods, each with two containers: one writes numbered lines without
// end, all together a hundred a second, and one exits with 10 plus the pod's number once
// <gate>/<number> exists.
func (n *node) pods(ctx context.Context, t *testing.T, pods int, gate string) {
	t.Helper()
	load := exec.Command(filepath.Join(n.binaries.dir, "crisp"), "--runtime-endpoint", "unix://"+n.socket, "image", "load", "-i", n.archive)
	if out, err := load.CombinedOutput(); err != nil {
		t.Fatalf("crisp image load: %v\n%s", err, out)
	}
	for i := range pods {
		pod, number := "pod"+strconv.Itoa(i), strconv.Itoa(i)
		sb, err := n.sandboxConfig(pod, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := n.runtime().RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: sb})
		if err != nil {
			t.Fatal(err)
		}
		n.ids[pod], n.sandboxes[pod] = resp.PodSandboxId, sb
		for name, command := range map[string][]string{
			"writer" + number:  {"--", "testbin", "count", "-1", (time.Duration(pods) * 10 * time.Millisecond).String()},
			"quitter" + number: {"mount=" + gate + ":/gate", "--", "testbin", "await", "/gate/" + number, "exit", strconv.Itoa(10 + i)},
		} {
			if err := n.createContainer(ctx, append([]string{pod, name}, command...)); err != nil {
				t.Fatal(err)
			}
			if _, err := n.runtime().StartContainer(ctx, &cri.StartContainerRequest{ContainerId: n.ids[name]}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// removePods removes the pods that pods has made.
func (n *node) removePods(ctx context.Context, t *testing.T) {
	for name := range n.sandboxes {
		if _, err := n.runtime().RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: n.ids[name]}); err != nil {
			t.Errorf("remove %s: %v", name, err)
		}
	}
}

// unit returns systemd's properties of crisp.service.
func unit(t *testing.T) map[string]string {
	t.Helper()
	out, err := exec.Command("systemctl", "show", "crisp.service", "-p", "MainPID", "-p", "ActiveState", "-p", "NRestarts", "-p", "ControlGroup").Output()
	if err != nil {
		t.Fatal(err)
	}
	u := map[string]string{}
	for line := range strings.Lines(string(out)) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), "=")
		u[k] = v
	}
	return u
}

// executorVersion returns the version of the running executor, from the last start in its
// log.
func (n *node) executorVersion(t *testing.T) string {
	t.Helper()
	log := read(t, filepath.Join(n.state, "executor.log"))
	at := bytes.LastIndex(log, []byte(`"executor started"`))
	_, after, ok := bytes.Cut(log[max(at, 0):], []byte(`"version":"`))
	if at < 0 || !ok {
		t.Fatalf("the executor's log has no start:\n%s", log)
	}
	version, _, _ := bytes.Cut(after, []byte(`"`))
	return string(version)
}

// The package is upgraded, and downgraded again, under twenty pods. No container is
// restarted, no line of a log and no exit code is lost, not even of containers that exit
// while there is no crispd. crispd and the executor are replaced; the executor is the same
// process.
func TestPackageUpgrade(t *testing.T) {
	const pods = 20
	n, deb, next := installedNode(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	gate := t.TempDir()
	n.pods(ctx, t, pods, gate)
	defer n.removePods(context.WithoutCancel(ctx), t)

	status := func(name string) *cri.ContainerStatus {
		t.Helper()
		s, err := n.runtime().ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: n.ids[name]})
		if err != nil {
			t.Fatalf("status of %s: %v", name, err)
		}
		return s.Status
	}
	version := func() string {
		t.Helper()
		v, err := n.runtime().Version(ctx, &cri.VersionRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimPrefix(v.RuntimeVersion, "0.0.0+") // the kubelet's form of a build without a tag
	}
	executor, err := n.executorPid()
	if err != nil {
		t.Fatal(err)
	}
	before, first := map[string]*cri.ContainerStatus{}, version()
	if got := n.executorVersion(t); got != first {
		t.Errorf("the executor is %s beside crispd %s", got, first)
	}
	for i := range pods {
		name := "writer" + strconv.Itoa(i)
		before[name] = status(name)
	}
	unchanged := func() {
		t.Helper()
		for name, was := range before {
			if is := status(name); is.State != cri.ContainerState_CONTAINER_RUNNING || is.StartedAt != was.StartedAt {
				t.Errorf("%s is %v, started at %d, want running since %d", name, is.State, is.StartedAt, was.StartedAt)
			}
		}
		if now, err := n.executorPid(); err != nil || now != executor {
			t.Errorf("the executor is process %d (%v), want %d as before", now, err, executor)
		}
		if got, want := n.executorVersion(t), version(); got != want {
			t.Errorf("the executor is %s beside crispd %s", got, want)
		}
	}

	// Half of the quitters exit while the package is unpacked, half while there is no
	// crispd.
	crispd, err := strconv.Atoi(unit(t)["MainPID"])
	if err != nil {
		t.Fatal(err)
	}
	release := func(i int) {
		if err := os.WriteFile(filepath.Join(gate, strconv.Itoa(i)), nil, 0o644); err != nil {
			t.Error(err)
		}
	}
	released := make(chan struct{})
	go func() {
		defer close(released)
		for i := 0; i < pods/2 && syscall.Kill(crispd, 0) == nil; i++ {
			release(i)
			time.Sleep(200 * time.Millisecond)
		}
		for syscall.Kill(crispd, 0) == nil && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		for i := range pods {
			release(i)
		}
	}()
	n.installed(t, next)
	<-released
	if now := version(); now == first {
		t.Errorf("crispd is still %s", first)
	}
	unchanged()
	for i := range pods {
		name := "quitter" + strconv.Itoa(i)
		s := status(name)
		for ; s.State == cri.ContainerState_CONTAINER_RUNNING && ctx.Err() == nil; s = status(name) {
			time.Sleep(50 * time.Millisecond)
		}
		if s.ExitCode != int32(10+i) {
			t.Errorf("%s ended with %d (%s %s), want %d", name, s.ExitCode, s.Reason, s.Message, 10+i)
		}
	}
	// Every call works with the new executor, also for the old containers.
	if r, err := n.runtime().ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: n.ids["writer0"], Cmd: []string{"/testbin", "print", "here"}}); err != nil || string(r.Stdout) != "here\n" {
		t.Errorf("exec after the upgrade: %v, %q", err, r.GetStdout())
	}

	n.installed(t, deb)
	if now := version(); now != first {
		t.Errorf("crispd is %s, want %s", now, first)
	}
	unchanged()
	if u := unit(t); u["ActiveState"] != "active" || u["NRestarts"] != "0" {
		t.Errorf("systemd says %v", u)
	}
	for i := range pods {
		name := "writer" + strconv.Itoa(i)
		if _, err := n.runtime().StopContainer(ctx, &cri.StopContainerRequest{ContainerId: n.ids[name]}); err != nil {
			t.Errorf("stop %s: %v", name, err)
		}
		numbered(t, n.logFile(name))
	}
}

// numbered checks that a log of "count" has all lines, each complete.
func numbered(t *testing.T, path string) {
	t.Helper()
	want := 0
	for line := range bytes.Lines(read(t, path)) {
		fields := bytes.Fields(line)
		if got := string(fields[len(fields)-1]); got != strconv.Itoa(want) {
			t.Errorf("line %d of %s is %q", want, path, line)
			return
		}
		want++
	}
	if want < 10 {
		t.Errorf("%s has only %d lines", path, want)
	}
}

// The service is stopped, killed and started: the executor is not in its cgroup, and pods
// are not affected.
func TestInstalledServiceRestarts(t *testing.T) {
	n, _, _ := installedNode(t)
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	n.pods(ctx, t, 1, t.TempDir())
	defer n.removePods(context.WithoutCancel(ctx), t)
	executor, err := n.executorPid()
	if err != nil {
		t.Fatal(err)
	}
	cgroup := read(t, fmt.Sprintf("/proc/%d/cgroup", executor))
	if group := unit(t)["ControlGroup"]; group == "" || bytes.Contains(cgroup, []byte(group)) {
		t.Errorf("the executor is in %q, crispd in %q", cgroup, group)
	}
	for _, args := range [][]string{{"restart", "crisp.service"}, {"kill", "-s", "KILL", "crisp.service"}, {"stop", "crisp.service"}, {"start", "crisp.service"}} {
		was := unit(t)["MainPID"]
		if out, err := exec.Command("systemctl", args...).CombinedOutput(); err != nil {
			t.Fatalf("systemctl %v: %v\n%s", args, err, out)
		}
		for args[0] == "kill" && ctx.Err() == nil && (unit(t)["MainPID"] == was || unit(t)["ActiveState"] != "active") {
			time.Sleep(50 * time.Millisecond)
		}
		if now, err := n.executorPid(); err != nil || now != executor {
			t.Fatalf("after systemctl %v the executor is process %d (%v), want %d", args, now, err, executor)
		}
	}
	s, err := n.runtime().ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: n.ids["writer0"]}, grpc.WaitForReady(true))
	if err != nil || s.Status.State != cri.ContainerState_CONTAINER_RUNNING {
		t.Fatalf("the container is %v, %v", s.GetStatus().GetState(), err)
	}
	if _, err := n.runtime().StopContainer(ctx, &cri.StopContainerRequest{ContainerId: n.ids["writer0"]}); err != nil {
		t.Error(err)
	}
	numbered(t, n.logFile("writer0"))
}

// The package is removed under a pod, which keeps running; after a new installation crispd has
// the pod again. A purge removes the pod, too, and leaves nothing.
func TestPackageRemoval(t *testing.T) {
	n, deb, _ := installedNode(t)
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	dpkg := func(args ...string) string {
		t.Helper()
		out, err := exec.Command("dpkg", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("dpkg %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	defer n.installed(t, deb)
	n.pods(ctx, t, 1, t.TempDir())
	pid := pidOf(t, "count")
	if out := dpkg("--remove", "crisp"); !strings.Contains(out, "1 pods keep running") {
		t.Errorf("removal does not say what becomes of pods:\n%s", out)
	}
	if got := pidOf(t, "count"); got != pid {
		t.Fatalf("the container is process %d, want %d", got, pid)
	}
	n.installed(t, deb)
	s, err := n.runtime().ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: n.ids["writer0"]}, grpc.WaitForReady(true))
	if err != nil || s.Status.State != cri.ContainerState_CONTAINER_RUNNING {
		t.Fatalf("the container is %v, %v", s.GetStatus().GetState(), err)
	}
	numbered(t, n.logFile("writer0"))

	dpkg("--purge", "crisp")
	if _, err := n.executorPid(); err == nil {
		t.Error("the executor is left")
	}
	if err := syscall.Kill(pid, 0); err == nil {
		t.Error("the container is left")
	}
	for _, path := range []string{"/var/lib/crisp", "/run/crisp", "/etc/crisp", "/usr/bin/crispd", "/usr/libexec/crisp"} {
		if testenv.Exists(path) {
			t.Errorf("%s is left", path)
		}
	}
	if links := read(t, "/proc/net/dev"); bytes.Contains(links, []byte("crisp")) {
		t.Errorf("a link is left:\n%s", links)
	}
	if mounts := read(t, "/proc/self/mountinfo"); bytes.Contains(mounts, []byte(" /run/crisp")) || bytes.Contains(mounts, []byte(" /var/lib/crisp")) {
		t.Errorf("a mount is left:\n%s", mounts)
	}
}

// The package is installed although crispd does not start, for a typo in its configuration, say: an
// error would keep apt from everything else on the node.
func TestPackageIsConfiguredThoughCrispdDoesNotStart(t *testing.T) {
	testenv.NeedRoot(t, "it mounts")
	fake := t.TempDir()
	for name, script := range map[string]string{
		"systemctl": "[ $1 = daemon-reload ] || { echo failed: $* >&2; exit 1; }", "getent": "exit 0",
	} {
		if err := os.WriteFile(filepath.Join(fake, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("unshare", "--mount", "sh", "-ec", `
		mount -t tmpfs tmpfs /run
		mkdir -p /run/systemd/system
		mount -t tmpfs tmpfs /var/lib
		PATH=$0:$PATH exec sh ../packaging/debian/postinst configure 1.0`, fake)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("it fails: %v", err)
	}
	for _, want := range []string{"crispd does not start", "journalctl -u crisp", "the agent does not start"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("it does not say %q:\n%s", want, out)
		}
	}
}
