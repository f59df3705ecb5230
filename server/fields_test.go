package server

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/testing/protocmp"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// spec returns the OCI spec of a container, from the verbose status.
func (n *node) spec(t *testing.T, id string) *specs.Spec {
	t.Helper()
	resp, err := n.ContainerStatus(t.Context(), &cri.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	var info struct {
		RuntimeSpec *specs.Spec `json:"runtimeSpec"`
	}
	if err := json.Unmarshal([]byte(resp.Info["info"]), &info); err != nil {
		t.Fatal(err)
	}
	return info.RuntimeSpec
}

// Each signal of CRI appears in the status, and is the one that StopContainer sends.
func TestStopSignals(t *testing.T) {
	n := newNode(t)
	sb := n.run(t, pod("web"))
	for value, name := range cri.Signal_name {
		asked := cri.Signal(value)
		config := forever(name)
		config.StopSignal = asked
		id := n.begin(t, sb, config)
		want := asked
		if asked == cri.Signal_SIGNAL_RUNTIME_DEFAULT {
			want = cri.Signal_SIGNAL_SIGQUIT // the image's signal
		}
		if got := n.status(t, id).StopSignal; got != want {
			t.Errorf("%s: status has %s", name, got)
		}
		if _, err := n.StopContainer(t.Context(), &cri.StopContainerRequest{ContainerId: id, Timeout: 600}); err != nil {
			t.Fatal(err)
		}
		sig, _ := linuxSignal(want)
		if got := n.status(t, id).ExitCode; got != 128+int32(sig) {
			t.Errorf("%s: exit code %d, want 128 + %d", name, got, sig)
		}
	}
	config := forever("unknown")
	config.StopSignal = 999
	_, err := n.CreateContainer(t.Context(), &cri.CreateContainerRequest{PodSandboxId: sb, Config: config})
	wantCode(t, "signal 999", err, "InvalidArgument")
}

// The status identifies a mounted image by the identifier that PullImage returns, whatever name the
// request has for it, also after a restart and after the image was removed.
func TestImageRefOfMounts(t *testing.T) {
	n := newNode(t)
	sb := n.run(t, pod("web"))
	config := forever("volume")
	host := t.TempDir()
	config.Mounts = []*cri.Mount{
		{ContainerPath: "/data", HostPath: host},
		{ContainerPath: "/image", Readonly: true, Image: &cri.ImageSpec{Image: testImage, UserSpecifiedImage: "test"}},
	}
	id := n.create(t, sb, config)
	want := []*cri.Mount{
		{ContainerPath: "/data", HostPath: host},
		{ContainerPath: "/image", Readonly: true, Image: &cri.ImageSpec{Image: testImage, UserSpecifiedImage: "test", ImageRef: testID}},
	}
	check := func() {
		t.Helper()
		if diff := cmp.Diff(want, n.status(t, id).Mounts, protocmp.Transform()); diff != "" {
			t.Errorf("mounts (-want +got):\n%s", diff)
		}
	}
	check()
	// The request can still be repeated.
	if again := n.create(t, sb, config); again != id {
		t.Errorf("a repetition made container %s, want %s", again, id)
	}
	n.restart(t)
	if _, err := n.images.RemoveImage(t.Context(), &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: testImage}}); err != nil {
		t.Fatal(err)
	}
	check()
}

const cdiFile = `{"cdiVersion": "0.6.0", "kind": "v.example/net", "devices": [
 {"name": "a", "containerEdits": {"env": ["A=1"]}}, {"name": "b", "containerEdits": {"env": ["B=1"]}}]}`

// CDI devices come from the field and from annotations; a missing one is an error, and
// nothing is left of the container.
func TestCDIDevices(t *testing.T) {
	n := newNode(t)
	sb := n.run(t, pod("web"))
	config := forever("device")
	config.CDIDevices = []*cri.CDIDevice{{Name: "v.example/net=a"}}
	config.Annotations = map[string]string{"cdi.k8s.io/plugin": "v.example/net=b"}
	create := &cri.CreateContainerRequest{PodSandboxId: sb, Config: config}
	_, err := n.CreateContainer(t.Context(), create)
	wantCode(t, "without a file", err, "InvalidArgument")
	if !strings.Contains(err.Error(), "v.example/net=a, v.example/net=b") {
		t.Errorf("without a file: %v does not name the devices", err)
	}
	if left := n.store.Mounts(); len(left) > 0 {
		t.Errorf("mounts are left: %q", left)
	}
	if err := os.WriteFile(filepath.Join(n.cdiDir(), "v.json"), []byte(cdiFile), 0o644); err != nil {
		t.Fatal(err)
	}
	env := n.spec(t, n.create(t, sb, config)).Process.Env
	if !slices.Contains(env, "A=1") || !slices.Contains(env, "B=1") {
		t.Errorf("environment is %q", env)
	}
}

// Hooks are chosen by the annotations of container and pod.
func TestHooks(t *testing.T) {
	n := newNode(t)
	config := pod("web")
	config.Annotations["example.com/inject"] = "yes"
	config.Annotations["org.systemd.property.KillMode"] = "'none'"
	sb := n.run(t, config)
	text := `{"version": "1.0.0", "hook": {"path": "/bin/sh"}, "when": {"annotations": {"^example.com/inject$": "yes"}}, "stages": ["createRuntime"]}`
	if err := os.WriteFile(filepath.Join(n.hooksDir(), "x.json"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	built := n.spec(t, n.create(t, sb, forever("a")))
	if built.Hooks == nil || len(built.Hooks.CreateRuntime) != 1 || built.Hooks.CreateRuntime[0].Path != "/bin/sh" {
		t.Errorf("hooks are %+v", built.Hooks)
	}
	if got := built.Annotations["example.com/inject"]; got != "yes" {
		t.Errorf("in the state that hooks read the pod's annotation is %q", got)
	}
	if got, ok := built.Annotations["org.systemd.property.KillMode"]; ok {
		t.Errorf("the pod sets a property of its scope to %q", got)
	}
	if err := os.WriteFile(filepath.Join(n.hooksDir(), "y.json"), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := n.CreateContainer(t.Context(), &cri.CreateContainerRequest{PodSandboxId: sb, Config: forever("b")})
	if err == nil || !strings.Contains(err.Error(), "y.json") {
		t.Errorf("with a broken file: got %v", err)
	}
}

// A container's image is shown by the tag that was requested, even if it has others.
func TestTagOf(t *testing.T) {
	tags := []string{"docker.io/library/nginx:1.25", "docker.io/library/nginx:latest", "reg.example/my-nginx:1"}
	for asked, want := range map[string]string{
		"nginx": tags[1], "nginx:latest": tags[1], "docker.io/library/nginx:1.25": tags[0], "reg.example/my-nginx:1": tags[2],
		"": tags[0], "nginx@sha256:00": tags[0], "gone:1": tags[0], "nginx:1": tags[0],
	} {
		if got := tagOf(tags, asked); got != want {
			t.Errorf("%q is shown as %s, want %s", asked, got, want)
		}
	}
}

// The kubelet's pods with their own network may listen on any port and may ping.
func TestPodSysctls(t *testing.T) {
	const port, ping = "net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range"
	for name, tt := range map[string]struct {
		network cri.NamespaceMode
		asked   map[string]string
		want    map[string]string
	}{
		"own":  {asked: map[string]string{"kernel.sem": "1"}, want: map[string]string{"kernel.sem": "1", port: "0", ping: "0 2147483647"}},
		"host": {network: cri.NamespaceMode_NODE},
		"asked": {asked: map[string]string{"net/ipv4/ip_unprivileged_port_start": "1024", ping: "1 0"},
			want: map[string]string{"net/ipv4/ip_unprivileged_port_start": "1024", ping: "1 0"}},
	} {
		got := podSysctls(&cri.LinuxPodSandboxConfig{
			Sysctls:         tt.asked,
			SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: &cri.NamespaceOption{Network: tt.network}},
		})
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// A file in place of a directory is reported as an error of the request, with the field that names
// it, not as an internal one. Without the file the same request succeeds.
func TestFileInTheWayOfADirectory(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("loop", filepath.Join(dir, "loop")); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{file, file + "/logs", dir + "/loop"} {
		config := pod("web")
		config.LogDirectory = at
		_, err := n.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: config})
		wantCode(t, at, err, "InvalidArgument")
		if !strings.Contains(err.Error(), "log_directory") {
			t.Errorf("%v does not name the field", err)
		}
	}
	config := pod("web")
	config.LogDirectory = dir
	sb := n.run(t, config)
	c := forever("a")
	c.LogPath = "file/a.log"
	_, err := n.CreateContainer(t.Context(), &cri.CreateContainerRequest{PodSandboxId: sb, Config: c})
	wantCode(t, "log_path", err, "InvalidArgument")
	c.LogPath = "logs/a.log"
	n.create(t, sb, c)
}

// Requests whose fields contradict each other.
func TestContainerRefused(t *testing.T) {
	n := newNode(t)
	sb := n.run(t, pod("web"))
	dir := t.TempDir()
	for name, change := range map[string]func(*cri.ContainerConfig){
		"group without user": func(c *cri.ContainerConfig) {
			c.Linux.SecurityContext.RunAsGroup = &cri.Int64Value{Value: 1}
		},
		"unknown user name":     func(c *cri.ContainerConfig) { c.Linux.SecurityContext.RunAsUsername = "nobody-here" },
		"unknown groups policy": func(c *cri.ContainerConfig) { c.Linux.SecurityContext.SupplementalGroupsPolicy = 7 },
		"privileged in a plain sandbox": func(c *cri.ContainerConfig) {
			c.Linux.SecurityContext.Privileged = true
		},
		"unknown capability": func(c *cri.ContainerConfig) {
			c.Linux.SecurityContext.Capabilities = &cri.Capability{AddCapabilities: []string{"NOPE"}}
		},
		"relative working directory": func(c *cri.ContainerConfig) { c.WorkingDir = "here" },
		"variable without a name":    func(c *cri.ContainerConfig) { c.Envs = []*cri.KeyValue{{Value: []byte("x")}} },
		"unknown mount option": func(c *cri.ContainerConfig) {
			c.Mounts = []*cri.Mount{{ContainerPath: "/d", HostPath: dir, MountOptions: []string{"exec,suid"}}}
		},
		"image and host path": func(c *cri.ContainerConfig) {
			c.Mounts = []*cri.Mount{{ContainerPath: "/d", HostPath: dir, Readonly: true, Image: &cri.ImageSpec{Image: testImage}}}
		},
		"writable image": func(c *cri.ContainerConfig) {
			c.Mounts = []*cri.Mount{{ContainerPath: "/d", Image: &cri.ImageSpec{Image: testImage}}}
		},
		"rejected source": func(c *cri.ContainerConfig) {
			c.Mounts = []*cri.Mount{{ContainerPath: "/d", HostPath: "/must/be/there"}}
		},
		"recursive read-only of a writable mount": func(c *cri.ContainerConfig) {
			c.Mounts = []*cri.Mount{{ContainerPath: "/d", HostPath: dir, RecursiveReadOnly: true}}
		},
		"missing device": func(c *cri.ContainerConfig) {
			c.Devices = []*cri.Device{{HostPath: filepath.Join(dir, "none"), ContainerPath: "/dev/none", Permissions: "rw"}}
		},
		"device permissions": func(c *cri.ContainerConfig) {
			c.Devices = []*cri.Device{{HostPath: "/dev/null", ContainerPath: "/dev/x", Permissions: "rwx"}}
		},
		"no device permissions": func(c *cri.ContainerConfig) {
			c.Devices = []*cri.Device{{HostPath: "/dev/null", ContainerPath: "/dev/x"}}
		},
		"CDI name": func(c *cri.ContainerConfig) { c.CDIDevices = []*cri.CDIDevice{{Name: "gpu0"}} },
		"unified on v1": func(c *cri.ContainerConfig) {
			c.Linux.Resources.Unified = map[string]string{"memory.high": "1"}
		},
		"hugepages without a controller": func(c *cri.ContainerConfig) {
			c.Linux.Resources.HugepageLimits = []*cri.HugepageLimit{{PageSize: "2MB", Limit: 1 << 21}}
		},
		"relative seccomp profile": func(c *cri.ContainerConfig) {
			c.Linux.SecurityContext.Seccomp = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost, LocalhostRef: "p.json"}
		},
		"missing seccomp profile": func(c *cri.ContainerConfig) {
			c.Linux.SecurityContext.Seccomp = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost, LocalhostRef: filepath.Join(dir, "none.json")}
		},
		"seccomp profile without a writer": func(c *cri.ContainerConfig) {
			c.Linux.SecurityContext.Seccomp = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost, LocalhostRef: fifo(t, dir)}
		},
		"seccomp profile without end": func(c *cri.ContainerConfig) {
			c.Linux.SecurityContext.Seccomp = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost, LocalhostRef: long(t, dir)}
		},
		"CDI file without a writer": func(c *cri.ContainerConfig) {
			fifo(t, n.cdiDir())
			c.CDIDevices = []*cri.CDIDevice{{Name: "vendor.example/class=device"}}
		},
	} {
		config := forever("c")
		if config.Linux == nil {
			config.Linux = new(cri.LinuxContainerConfig)
		}
		if config.Linux.SecurityContext == nil {
			config.Linux.SecurityContext = new(cri.LinuxContainerSecurityContext)
		}
		if config.Linux.Resources == nil {
			config.Linux.Resources = new(cri.LinuxContainerResources)
		}
		change(config)
		_, err := n.CreateContainer(t.Context(), &cri.CreateContainerRequest{PodSandboxId: sb, Config: config})
		wantCode(t, name, err, "InvalidArgument")
	}
	if left := n.store.Mounts(); len(left) > 0 {
		t.Errorf("mounts are left: %q", left)
	}
	if ids := n.listed(t); !slices.Equal(ids, []string{sb}) {
		t.Errorf("listed: %q", ids)
	}
}

// fifo makes a FIFO without a writer in dir, and returns its path.
func fifo(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "fifo.json")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// long makes a file in dir that is larger than any seccomp profile, and returns its path.
func long(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "long.json")
	if err := os.WriteFile(path, []byte(`{"defaultAction":"SCMP_ACT_ALLOW"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, maxProfile+1); err != nil {
		t.Fatal(err)
	}
	return path
}

// Fields that CRI does not require may be omitted.
func TestLeastConfig(t *testing.T) {
	n := newNode(t)
	for name, linux := range map[string]*cri.LinuxPodSandboxConfig{
		"nothing": nil,
		"container": {SecurityContext: &cri.LinuxSandboxSecurityContext{
			NamespaceOptions: &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER},
		}},
	} {
		sb := n.run(t, &cri.PodSandboxConfig{Metadata: &cri.PodSandboxMetadata{Name: name, Namespace: "n", Uid: name}, Linux: linux})
		id := n.begin(t, sb, &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: "c"}, Image: &cri.ImageSpec{Image: testImage}, Args: []string{"sleep", "for-ever"},
		})
		st := n.status(t, id)
		if st.State != cri.ContainerState_CONTAINER_RUNNING || st.LogPath != "" || st.Image.GetImage() == "" || st.ImageRef == "" {
			t.Errorf("%s: status is %v", name, st)
		}
	}
}

// The pod's resources that the kubelet sends are in the verbose status, also after a
// restart.
func TestUpdatePodSandboxResources(t *testing.T) {
	n := newNode(t)
	sb := n.run(t, pod("web"))
	_, err := n.UpdatePodSandboxResources(t.Context(), &cri.UpdatePodSandboxResourcesRequest{
		PodSandboxId: sb[:10], Overhead: &cri.LinuxContainerResources{CpuShares: 7}, Resources: &cri.LinuxContainerResources{MemoryLimitInBytes: 1234567},
	})
	if err != nil {
		t.Fatal(err)
	}
	n.restart(t)
	resp, err := n.PodSandboxStatus(t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: sb, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"cpu_shares":7`, `"memory_limit_in_bytes":1234567`} {
		if !strings.Contains(resp.Info["info"], want) {
			t.Errorf("verbose status %s lacks %s", resp.Info["info"], want)
		}
	}
}
