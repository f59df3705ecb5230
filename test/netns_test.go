package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// agentPlugin is a CNI plugin that delegates to an agent in a pod, as those of Multus,
// OVN-Kubernetes and Istio do: it opens the network namespace from within the mount namespace of
// process %d.
const agentPlugin = `#!/bin/sh
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}' ;;
ADD)
	magic=$(nsenter --mount=/proc/%d/ns/mnt stat -f -c %%t "$CNI_NETNS" 2>&1)
	if [ "$magic" != 6e736673 ]; then # NSFS_MAGIC
		echo "{\"code\":100,\"msg\":\"failed to open netns $CNI_NETNS: unknown FS magic on it: $magic\"}"
		exit 1
	fi
	echo '{"cniVersion":"1.0.0","ips":[{"address":"10.99.0.2/24"}]}' ;;
esac
`

// The agent of a network plugin runs in a pod that is older than crispd's pods, and opens their
// network namespaces by the paths that the plugin gets. After a pod is stopped the agent sees
// nothing of it.
func TestNetworkAgentOpensNamespaces(t *testing.T) {
	var agent *exec.Cmd
	n, _ := startNode(t, func(n *node, config string) error {
		// On hosts, systemd makes mounts shared; on this machine they may not be.
		if err := unix.Mount(n.dir, n.dir, "", unix.MS_BIND, ""); err != nil {
			return err
		}
		n.unmountAll = append(n.unmountAll, n.dir)
		if err := unix.Mount("", n.dir, "", unix.MS_SHARED, ""); err != nil {
			return err
		}
		// mountPropagation: HostToContainer
		agent = exec.Command("unshare", "--mount", "--propagation", "slave", "sh", "-c", "echo ready; exec sleep 3600")
		out, err := agent.StdoutPipe()
		if err != nil {
			return err
		}
		if err := agent.Start(); err != nil {
			return err
		}
		t.Cleanup(func() {
			agent.Process.Kill()
			agent.Wait()
		})
		if _, err := out.Read(make([]byte, 1)); err != nil {
			return err
		}
		plugin := fmt.Sprintf(agentPlugin, agent.Process.Pid)
		for path, text := range map[string]string{
			"bin/agent":               plugin,
			"net.d/10-agent.conflist": `{"cniVersion":"1.0.0","name":"agent","plugins":[{"type":"agent"}]}`,
		} {
			path = filepath.Join(n.work, path)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
				return err
			}
		}
		return os.WriteFile(config, fmt.Appendf(nil, "[cni]\nconf_dir = %q\nbin_dirs = [%q]\n", n.work+"/net.d", n.work+"/bin"), 0o644)
	})
	for range 2 {
		sb, err := n.sandboxConfig("p", nil)
		if err != nil {
			t.Fatal(err)
		}
		run, err := n.runtime().RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: sb})
		if err != nil {
			t.Fatal(err)
		}
		mounts := func() string {
			out, err := exec.Command("nsenter", fmt.Sprintf("--mount=/proc/%d/ns/mnt", agent.Process.Pid), "cat", "/proc/self/mountinfo").Output()
			if err != nil {
				t.Fatal(err)
			}
			return string(out)
		}
		if got := strings.Count(mounts(), run.PodSandboxId); got != 1 {
			t.Errorf("the agent sees %d mounts of the pod, want its network namespace alone", got)
		}
		if _, err := n.runtime().StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: run.PodSandboxId}); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(mounts(), run.PodSandboxId) {
			t.Errorf("the agent still sees a mount of the stopped pod")
		}
		if _, err := n.runtime().RemovePodSandbox(t.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: run.PodSandboxId}); err != nil {
			t.Fatal(err)
		}
	}
}
