package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/oci/wire"
	"github.com/crisp-cri/crisp/server/spec"
)

// anyProgram is the path of a program that exists: the test's.
const anyProgram = "/proc/self/exe"

// newShimNode returns a node with the handler "gvisor", whose shim is anyProgram.
func newShimNode(t *testing.T) *node {
	n := newNode(t)
	n.handlers = map[string]Handler{"gvisor": {
		Shim:        &oci.Shim{Path: anyProgram, OptionsType: "runtimeoptions.v1.Options", Options: []byte("x"), Mounts: true},
		SpecHost:    spec.Host{MinOOMScoreAdj: -500},
		Annotations: []string{"dev.gvisor.*"}, NoUserNS: errors.New("its shim makes no user namespaces"),
		Overhead: Overhead{MilliCPU: 250, Memory: 120 << 20},
	}}
	n.restart(t)
	return n
}

// runShim runs a pod of the handler.
func (n *node) runShim(t *testing.T, config *cri.PodSandboxConfig) string {
	t.Helper()
	resp, err := n.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: config, RuntimeHandler: "gvisor"})
	if err != nil {
		t.Fatal(err)
	}
	return resp.PodSandboxId
}

// shimRequest returns what the executor was asked to run, and its specification.
func (n *node) shimRequest(t *testing.T, id string) (wire.RunRequest, *specs.Spec) {
	t.Helper()
	req, ok := n.machine.Request(id)
	if !ok {
		t.Fatalf("the executor has no container %s", id)
	}
	return req, req.Spec
}

func shimPod(name string) *cri.PodSandboxConfig {
	config := pod(name)
	config.LogDirectory = ""
	config.Annotations["dev.gvisor.internal"] = "1"
	config.Annotations["run.oci.handler"] = "not for this one"
	config.Linux.Sysctls = map[string]string{"net.ipv4.ip_default_ttl": "70"}
	config.Linux.Resources = &cri.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: 50000, CpuShares: 512, MemoryLimitInBytes: 64 << 20}
	config.Linux.SecurityContext.NamespaceOptions.Pid = cri.NamespaceMode_POD
	return config
}

// The pod of a shim has a container of its own, with the sandbox's ID and containerd's annotations,
// after its network is there. Its containers join the shim, and the PID namespace of that container
// if they want the pod's.
func TestShimPod(t *testing.T) {
	n := newShimNode(t)
	config := shimPod("web")
	config.LogDirectory = t.TempDir()
	sb := n.runShim(t, config)
	req, built := n.shimRequest(t, sb)
	want := wire.Shim{Path: anyProgram, OptionsType: "runtimeoptions.v1.Options", Options: []byte("x"), Mounts: true}
	if diff := cmp.Diff(&want, req.Shim); diff != "" {
		t.Errorf("shim of the sandbox: %s", diff)
	}
	pid := fmt.Sprint(n.sandbox(t, sb).InitPid())
	if diff := cmp.Diff(map[string]string{
		"io.kubernetes.cri.container-type": "sandbox", "io.kubernetes.cri.sandbox-id": sb, "io.kubernetes.cri.sandbox-name": "web",
		"io.kubernetes.cri.sandbox-namespace": "default", "io.kubernetes.cri.sandbox-uid": "uid-web",
		"io.kubernetes.cri.sandbox-log-directory": config.LogDirectory, "io.kubernetes.cri.sandbox-cpu-period": "100000",
		"io.kubernetes.cri.sandbox-cpu-quota": "50000", "io.kubernetes.cri.sandbox-cpu-shares": "512", "io.kubernetes.cri.sandbox-memory": "67108864",
		"dev.gvisor.internal": "1",
	}, built.Annotations); diff != "" {
		t.Errorf("annotations of the sandbox: %s", diff)
	}
	if built.Hostname != "web" || built.Linux.Sysctl["net.ipv4.ip_default_ttl"] != "70" || !built.Root.Readonly || *built.Process.OOMScoreAdj != -500 ||
		!strings.HasSuffix(built.Linux.CgroupsPath, sb) || built.Process.Args[0] != "/init" {
		t.Errorf("the sandbox is %+v, %+v, %+v", built, built.Root, built.Process)
	}
	if ns := namespacePaths(built); ns["network"] != n.sandbox(t, sb).NetNS() || ns["pid"] != "" || ns["ipc"] == "" || ns["uts"] == "" {
		t.Errorf("namespaces of the sandbox: %v", ns)
	}
	for _, name := range []string{"init", "etc/hosts"} {
		if _, err := os.Stat(filepath.Join(built.Root.Path, name)); err != nil {
			t.Error(err)
		}
	}

	shared, own := forever("shared"), forever("own")
	shared.Linux.SecurityContext.NamespaceOptions.Pid = cri.NamespaceMode_POD
	shared.Annotations["dev.gvisor.flag"] = "2"
	ids := []string{n.begin(t, sb, shared), n.begin(t, sb, own)}
	for i, wantPID := range []string{"/proc/" + pid + "/ns/pid", ""} {
		req, built := n.shimRequest(t, ids[i])
		if req.Shim == nil || req.Shim.Sandbox != sb || req.Shim.Path != anyProgram {
			t.Errorf("container %d: shim %+v", i, req.Shim)
		}
		if got := namespacePaths(built)["pid"]; got != wantPID {
			t.Errorf("container %d joins the PID namespace %q, want %q", i, got, wantPID)
		}
		if a := built.Annotations; a["io.kubernetes.cri.container-type"] != "container" || a["io.kubernetes.cri.sandbox-id"] != sb ||
			a["io.kubernetes.cri.container-name"] == "" || a["io.kubernetes.cri.image-name"] != testImage || a["run.oci.handler"] != "" || a["dev.gvisor.internal"] != "1" {
			t.Errorf("container %d: annotations %v", i, a)
		}
	}

	status, err := n.PodSandboxStatus(t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: sb})
	if err != nil || status.Status.RuntimeHandler != "gvisor" || status.Status.State != cri.PodSandboxState_SANDBOX_READY {
		t.Errorf("status %+v, %v", status.GetStatus(), err)
	}
	n.endShimPod(t, sb, ids)
}

// A shim that makes sandboxes by its Sandbox API gets the pod's configuration, without the annotations that
// the handler holds back, and no root. Its containers are as those of other shims.
func TestShimMakesSandbox(t *testing.T) {
	n := newShimNode(t)
	n.handlers["gvisor"].Shim.SandboxAPI = true
	n.restart(t)
	config := shimPod("web")
	sb := n.runShim(t, config)
	req, built := n.shimRequest(t, sb)
	got := &cri.PodSandboxConfig{}
	if err := proto.Unmarshal(req.Shim.Pod, got); err != nil || !req.Shim.SandboxAPI || built.Root.Path != "" {
		t.Fatalf("the shim is asked for %+v with the root %q (%v)", req.Shim, built.Root.Path, err)
	}
	if a := got.Annotations; a["dev.gvisor.internal"] != "1" || a["run.oci.handler"] != "" || a["io.kubernetes.cri.sandbox-id"] != sb || a["io.kubernetes.cri.sandbox-memory"] != "67108864" {
		t.Errorf("the pod's annotations are %v", a)
	}
	got.Annotations = config.Annotations
	if diff := cmp.Diff(config, got, protocmp.Transform()); diff != "" {
		t.Errorf("the pod (-want +got):\n%s", diff)
	}
	id := n.begin(t, sb, forever("own"))
	if req, _ := n.shimRequest(t, id); req.Shim.Sandbox != sb || req.Shim.Pod != nil {
		t.Errorf("the container's shim is %+v", req.Shim)
	}
	if info := n.handlers["gvisor"].info(); info.Sandbox != "shim" {
		t.Errorf("the handler is %+v", info)
	}
	n.endShimPod(t, sb, []string{id})
}

// endShimPod restarts both daemons under a pod, runs a command in it, and removes it.
func (n *node) endShimPod(t *testing.T, sb string, ids []string) {
	t.Helper()
	n.restart(t)
	n.machine.Crash()
	n.restart(t)
	for _, id := range ids {
		if st := n.status(t, id); st.State != cri.ContainerState_CONTAINER_RUNNING {
			t.Errorf("after the restarts container %s is %s: %s", id, st.State, st.Message)
		}
	}
	x, err := n.ExecSync(t.Context(), &cri.ExecSyncRequest{ContainerId: ids[0], Cmd: []string{"testbin", "print", "hello"}, Timeout: 5})
	if err != nil || string(x.GetStdout()) != "hello\n" {
		t.Errorf("exec: %v, %v", x, err)
	}
	if _, err := n.StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: sb}); err != nil {
		t.Fatal(err)
	}
	if known := n.machine.Known(); slices.Contains(known, sb) {
		t.Error("a stopped sandbox still has its shim")
	}
	if _, err := n.RemovePodSandbox(t.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: sb}); err != nil {
		t.Fatal(err)
	}
	n.wantNothingLeft(t)
}

func (n *node) sandbox(t *testing.T, id string) *oci.Sandbox {
	t.Helper()
	sb, err := n.runtime.Sandbox(id)
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

// namespacePaths returns the paths of a specification's namespaces, by kind.
func namespacePaths(s *specs.Spec) map[string]string {
	paths := map[string]string{}
	for _, ns := range s.Linux.Namespaces {
		paths[string(ns.Type)] = ns.Path
	}
	return paths
}

// When the sandbox's own container ends, so do the sandbox and its containers; the pod can be
// removed and made again.
func TestShimEnds(t *testing.T) {
	n := newShimNode(t)
	sb := n.runShim(t, shimPod("web"))
	c := n.begin(t, sb, forever("c"))
	n.machine.KillAll(sb)
	for begun := time.Now(); n.status(t, c).State != cri.ContainerState_CONTAINER_EXITED || n.sandbox(t, sb).State() == oci.SandboxReady; time.Sleep(10 * time.Millisecond) {
		if time.Since(begun) > 30*time.Second {
			t.Fatalf("container is %s, sandbox %s", n.status(t, c).State, n.sandbox(t, sb).State())
		}
	}
	status, err := n.PodSandboxStatus(t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: sb})
	if err != nil || status.Status.State != cri.PodSandboxState_SANDBOX_NOTREADY {
		t.Errorf("status %+v, %v", status.GetStatus(), err)
	}
	if _, err := n.RemovePodSandbox(t.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: sb}); err != nil {
		t.Fatal(err)
	}
	n.wantNothingLeft(t)
	again := n.runShim(t, shimPod("web"))
	n.endShimPod(t, again, []string{n.begin(t, again, forever("c"))})
}

// A shim that cannot be started leaves nothing behind, and the next attempt succeeds.
func TestShimDoesNotStart(t *testing.T) {
	n := newShimNode(t)
	n.machine.Fail(wire.MethodRun, errors.New("no such luck"))
	_, err := n.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: shimPod("web"), RuntimeHandler: "gvisor"})
	if err == nil || !strings.Contains(err.Error(), "no such luck") {
		t.Errorf("got %v", err)
	}
	n.wantNothingLeft(t)
	n.machine.Fail(wire.MethodRun, nil)
	sb := n.runShim(t, shimPod("web"))
	n.endShimPod(t, sb, []string{n.begin(t, sb, forever("c"))})
}

// What a shim cannot do is refused, with the field or the handler in the error.
func TestShimRefuses(t *testing.T) {
	n := newShimNode(t)
	n.handlers["missing"] = Handler{Shim: &oci.Shim{Path: "/no/such/shim"}}
	n.restart(t)
	_, err := n.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: shimPod("web"), RuntimeHandler: "missing"})
	wantCode(t, "missing program", err, "FailedPrecondition")
	if err == nil || !strings.Contains(err.Error(), `shim of handler "missing"`) || !strings.Contains(err.Error(), "/no/such/shim") {
		t.Errorf("missing program: %v", err)
	}
	mapped := shimPod("mapped")
	mapped.Linux.SecurityContext.NamespaceOptions = &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER, UsernsOptions: &cri.UserNamespace{
		Mode: cri.NamespaceMode_POD, Uids: []*cri.IDMapping{{HostId: 1 << 16, Length: 1 << 16}}, Gids: []*cri.IDMapping{{HostId: 1 << 16, Length: 1 << 16}},
	}}
	_, err = n.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: mapped, RuntimeHandler: "gvisor"})
	wantCode(t, "user namespace", err, "InvalidArgument")
	if err == nil || !strings.Contains(err.Error(), `handler "gvisor": its shim makes no user namespaces`) {
		t.Errorf("user namespace: %v", err)
	}

	sb := n.runShim(t, shimPod("web"))
	c := n.begin(t, sb, forever("c"))
	config := forever("mapped")
	one := []*cri.IDMapping{{HostId: 1, Length: 1}}
	config.Mounts = []*cri.Mount{{ContainerPath: "/m", HostPath: t.TempDir(), UidMappings: one, GidMappings: one}}
	_, err = n.CreateContainer(t.Context(), &cri.CreateContainerRequest{PodSandboxId: sb, Config: config})
	wantCode(t, "mapped mount", err, "InvalidArgument")
	config = forever("bytes")
	config.Envs = []*cri.KeyValue{{Key: "A", Value: []byte{0xff}}}
	_, err = n.CreateContainer(t.Context(), &cri.CreateContainerRequest{PodSandboxId: sb, Config: config})
	wantCode(t, "an environment that is not UTF-8", err, "InvalidArgument")
	config = forever("debugger")
	config.Linux.SecurityContext.NamespaceOptions = &cri.NamespaceOption{Pid: cri.NamespaceMode_TARGET, TargetId: c}
	_, err = n.CreateContainer(t.Context(), &cri.CreateContainerRequest{PodSandboxId: sb, Config: config})
	wantCode(t, "the PID namespace of another container", err, "InvalidArgument")
	if err == nil || !strings.Contains(err.Error(), `handler "gvisor"`) {
		t.Errorf("the PID namespace of another container: %v", err)
	}
	dir := t.TempDir()
	n.machine.Fail(wire.MethodFreeze, fault.WrongState.Errorf("it makes no checkpoints"))
	_, err = n.CheckpointContainer(t.Context(), &cri.CheckpointContainerRequest{ContainerId: c, Location: filepath.Join(dir, "c.tar")})
	wantCode(t, "checkpoint", err, "FailedPrecondition")
	if err == nil || !strings.Contains(err.Error(), `handler "gvisor"`) {
		t.Errorf("checkpoint: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = n.CheckpointPod(ctx, &cri.CheckpointPodRequest{PodSandboxId: sb, ContainerIds: []string{c}, OutputPath: dir})
	wantCode(t, "checkpoint of the pod", err, "FailedPrecondition")
	if err == nil || !strings.Contains(err.Error(), `handler "gvisor"`) {
		t.Errorf("checkpoint of the pod: %v", err)
	}
	n.endShimPod(t, sb, []string{c})
}

// The status says what each handler is, and whether its program is there.
func TestShimStatus(t *testing.T) {
	n := newShimNode(t)
	n.handlers["runc"] = Handler{Engine: "/no/such/runc", Features: oci.Features{NoSymFollow: true, IDMap: true}}
	n.restart(t)
	resp, err := n.Status(t.Context(), &cri.StatusRequest{Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	var info struct{ Handlers map[string]handlerInfo }
	if err := json.Unmarshal([]byte(resp.Info["config"]), &info); err != nil {
		t.Fatal(err)
	}
	missing := info.Handlers["runc"].Missing
	if !strings.Contains(missing, "/no/such/runc") {
		t.Errorf("of the missing program it says %q", missing)
	}
	want := map[string]handlerInfo{
		"": {Kind: "libcontainer"}, "crisp": {Kind: "libcontainer"}, "runc": {Kind: "OCI runtime", Program: "/no/such/runc", Missing: missing, Features: []string{"idmap", "nosymfollow"}},
		"gvisor": {Kind: "shim", Program: anyProgram, Options: "runtimeoptions.v1.Options", Snapshot: "mounts", Overhead: &Overhead{250, 120 << 20}},
	}
	if diff := cmp.Diff(want, info.Handlers); diff != "" {
		t.Error(diff)
	}
	for _, h := range resp.RuntimeHandlers {
		if h.Name == "gvisor" && (h.Features.UserNamespaces || h.Features.RecursiveReadOnlyMounts) {
			t.Errorf("features of a shim: %+v", h.Features)
		}
	}
}
