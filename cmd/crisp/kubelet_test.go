package main

import (
	"path/filepath"
	"testing"
)

// An agent that is started as a kubelet is runs as a kubelet would.
func TestKubeletConfig(t *testing.T) {
	n := newNode(t)
	config := n.file("kubelet.yaml", `kind: KubeletConfiguration
apiVersion: kubelet.config.k8s.io/v1beta1
staticPodPath: `+filepath.Join(n.dir, "manifests")+`
clusterDNS: [192.0.2.10, 192.0.2.11]
clusterDomain: from.file
registryPullQPS: 7
cpuCFSQuota: false
healthzPort: 0
crashLoopBackOff: {maxContainerRestartPeriod: 20s}
evictionHard: {memory.available: 1Mi}
`)
	n.flags = []string{"--config", config, "--cluster-domain", "from.flag", "--feature-gates", "A=true", "--fail-swap-on=false", "--v", "4"}
	n.manifest("web.yaml", webPod)
	stop := n.agent()
	n.until("get pods", `web +2/2 `)
	n.expect(
		expectation{"config view -o json", 0, `(?s)"clusterDNS": \[\s+"192.0.2.10",\s+"192.0.2.11"\s+\],\s+"clusterDomain": "from.flag".*"cpuCFSQuota": false`},
	)
	stop()
	n.expect(
		expectation{"agent --config " + n.file("other.yaml", "kind: Pod\n"), 2, `kind is Pod, want KubeletConfiguration`},
		expectation{"agent --config " + n.file("odd.yaml", "kind: KubeletConfiguration\nregistryPullQPS: many\ncpuManagerPolicy: none\n"), 2, `(?s)cpuManagerPolicy has no effect.*registryPullQPS`},
	)
}
