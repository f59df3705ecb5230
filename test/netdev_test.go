package test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Containers of a pod that ask for one network device and start at once all start: one brings it
// into the pod's network, the others find it there.
func TestNetworkDeviceAtOnce(t *testing.T) {
	n, _ := startNode(t, func(n *node, config string) error {
		cdi := filepath.Join(n.dir, "cdi")
		spec := `{"cdiVersion": "1.1.0", "kind": "v.example/net", "devices": [{"name": "a", "containerEdits": {"netDevices": [{"hostInterfaceName": "crisp-cdi0", "name": "mine"}]}}]}`
		return errors.Join(os.Mkdir(cdi, 0o755), os.WriteFile(filepath.Join(cdi, "v.json"), []byte(spec), 0o644),
			os.WriteFile(config, []byte(withInit(fmt.Sprintf("[cdi]\nspec_dirs = [%q]\n", cdi))), 0o644))
	})
	u := &unified{node: n, t: t}
	for round := range 5 {
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) { // the kernel deletes the last one later than its namespace
			out, err := exec.Command("ip", "link", "add", "crisp-cdi0", "type", "veth", "peer", "name", "crisp-cdi1").CombinedOutput()
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%v: %s", err, out)
			}
		}
		pod, err := n.sandboxConfig(fmt.Sprint("p", round), nil)
		if err != nil {
			t.Fatal(err)
		}
		id := u.run(pod)
		starts := make(chan error)
		const many = 6
		for i := range many {
			created, err := n.runtime().CreateContainer(u.ctx(), &cri.CreateContainerRequest{
				PodSandboxId: id, SandboxConfig: pod,
				Config: &cri.ContainerConfig{
					Metadata: &cri.ContainerMetadata{Name: fmt.Sprint("c", i)}, Image: &cri.ImageSpec{Image: testImage},
					Command: []string{"/testbin", "stat", "/sys/class/net/mine", "sleep", "for-ever"}, CDIDevices: []*cri.CDIDevice{{Name: "v.example/net=a"}},
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				_, err := n.runtime().StartContainer(u.ctx(), &cri.StartContainerRequest{ContainerId: created.ContainerId})
				starts <- err
			}()
		}
		for range many {
			if err := <-starts; err != nil {
				t.Error(err)
			}
		}
		if _, err := n.runtime().RemovePodSandbox(u.ctx(), &cri.RemovePodSandboxRequest{PodSandboxId: id}); err != nil {
			t.Fatal(err)
		}
	}
}
