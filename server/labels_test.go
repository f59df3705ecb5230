package server

import (
	"context"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/server/selinux"
	"github.com/crisp-cri/crisp/server/spec"
	"github.com/crisp-cri/crisp/test/testenv"
)

// withSELinux restarts n's crispd on a host with SELinux enabled.
func (n *node) withSELinux(t *testing.T) {
	testenv.NeedRoot(t, "files get labels")
	n.stop()
	n.selinux = selinux.New("u:system_r:container_t:s0", "u:object_r:container_file_t:s0", func(label string) (string, error) {
		if strings.Contains(label, "unknown_t") {
			return "", unix.EINVAL
		}
		return label, nil
	})
	n.start(t)
}

// labelled returns a pod with a type. It uses the host's IPC namespace, because the fake machine
// makes no directory for /dev/shm.
func labelled(name, kind string) *cri.PodSandboxConfig {
	config := pod(name)
	config.Linux.SecurityContext.NamespaceOptions.Ipc = cri.NamespaceMode_NODE
	config.Linux.SecurityContext.SelinuxOptions = &cri.SELinuxOption{Type: kind}
	return config
}

// labelsOf returns the labels in the spec of a new container.
func (n *node) labelsOf(t *testing.T, sandbox, name string, o *cri.SELinuxOption) (process, mount string) {
	t.Helper()
	config := forever(name)
	config.Linux = &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{SelinuxOptions: o}}
	c, err := n.runtime.Container(n.create(t, sandbox, config))
	if err != nil {
		t.Fatal(err)
	}
	return c.Config().Spec.Process.SelinuxLabel, c.Config().Spec.Linux.MountLabel
}

// A pod keeps its labels, which no other pod has, across restarts of crispd.
func TestPodLabels(t *testing.T) {
	n := newNode(t)
	n.withSELinux(t)
	id := n.run(t, labelled("a", "container_t"))
	process, mount := n.labelsOf(t, id, "one", nil)
	level, ok := strings.CutPrefix(process, "u:system_r:container_t:")
	if !ok || !strings.HasPrefix(level, "s0:c") || mount != "u:object_r:container_file_t:"+level {
		t.Fatalf("labels %s and %s", process, mount)
	}
	if p, m := n.labelsOf(t, id, "two", nil); p != process || m != mount {
		t.Errorf("another container of the pod has %s and %s, the first %s and %s", p, m, process, mount)
	}
	if p, m := n.labelsOf(t, id, "three", &cri.SELinuxOption{Type: "mine_t"}); p != "u:system_r:mine_t:"+level || m != mount {
		t.Errorf("a container with a type has %s and %s", p, m)
	}

	n.restart(t)
	if p, _ := n.labelsOf(t, id, "four", nil); p != process {
		t.Errorf("after a restart the pod's label is %s, was %s", p, process)
	}
	if p, _ := n.labelsOf(t, n.run(t, labelled("b", "container_t")), "one", nil); p == process || p == "" {
		t.Errorf("another pod has %q too", p)
	}
	if p, m := n.labelsOf(t, n.run(t, labelled("c", "")), "one", nil); p != "" || m != "" {
		t.Errorf("a pod with the host's IPC namespace that asks for nothing has %q and %q", p, m)
	}
	if _, err := n.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: labelled("wrong", "unknown_t")}); err == nil || !strings.Contains(err.Error(), "InvalidArgument") {
		t.Errorf("a type that the policy does not know: %v", err)
	}
}

// confiner knows one profile.
type confiner struct{}

func (confiner) Check(_ context.Context, profile string) error {
	if profile != "loaded" {
		return fault.Invalid.Errorf("no profile %q", profile)
	}
	return nil
}

// A container that could not start because its profile is missing is not created.
func TestAppArmorProfileIsChecked(t *testing.T) {
	n := newNode(t)
	n.stop()
	n.apparmor = confiner{}
	n.handlers = map[string]Handler{"confining": {SpecHost: spec.Host{AppArmor: true, AppArmorDefault: "loaded"}}}
	n.start(t)
	resp, err := n.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: pod("a"), RuntimeHandler: "confining"})
	if err != nil {
		t.Fatal(err)
	}
	for profile, ok := range map[string]bool{"localhost/loaded": true, "localhost/missing": false, "": true} {
		config := forever("c" + strings.TrimPrefix(profile, "localhost/"))
		//lint:ignore SA1019 older clients set only this field
		config.Linux = &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{ApparmorProfile: profile}}
		_, err := n.CreateContainer(t.Context(), &cri.CreateContainerRequest{PodSandboxId: resp.PodSandboxId, Config: config})
		if (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "InvalidArgument") {
			t.Errorf("profile %q: %v", profile, err)
		}
	}
}
