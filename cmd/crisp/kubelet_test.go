package main

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// An agent that is started with a kubelet's flags and configuration behaves like a kubelet.
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
	n.flags = []string{"--config", config, "--cluster-domain", "from.flag", "--feature-gates", "A=true", "--fail-swap-on=false", "--v", "4", "--of-another-version", "word", "--another=1"}
	n.manifest("web.yaml", webPod)
	stop := n.agent()
	n.until("get pods", `web +2/2 `)
	n.expect(
		expectation{"config view -o json", 0, `(?s)"clusterDNS": \[\s+"192.0.2.10",\s+"192.0.2.11"\s+\],\s+"clusterDomain": "from.flag".*"cpuCFSQuota": false`},
	)
	stop()
	n.expect(
		expectation{"agent -chaos word -x 1 --pod-max-pids -1 --registry-qps=-1 --cluster-dns odd", 2, `(?s)^crisp: warning: --chaos is not known and has no effect\ncrisp: warning: --x is not known and has no effect\ncrisp: --cluster-dns odd`},
		expectation{"agent --cluster-dns 192.0.2.10, --manifest-url-header odd", 2, `want NAME:VALUE`},
		expectation{"agent --v many", 2, `invalid argument "many" for "-v, --v" flag`},
		expectation{"agent --config " + n.file("other.yaml", "kind: Pod\n"), 2, `kind is Pod, want KubeletConfiguration`},
		expectation{"agent --config " + n.file("odd.yaml", "kind: KubeletConfiguration\nregistryPullQPS: many\ncpuManagerPolicy: none\n"), 2, `(?s)cpuManagerPolicy has no effect.*registryPullQPS`},
		expectation{"agent --config " + n.file("traces.yaml", "kind: KubeletConfiguration\ntracing: {endpoint: nowhere}\n"), 2, `--tracing-endpoint nowhere: want host:port`},
		expectation{"agent --tracing-samples-per-million -1", 2, `want a number between 0 and 1000000`},
	)
}

// The agent reports the configuration with which it was started. An agent that is started with that
// report has the same configuration.
func TestConfigz(t *testing.T) {
	n := newNode(t)
	flags := map[string]string{
		"max-pods": "7", "pod-max-pids": "1048576", "system-reserved": "memory=1Mi", "kube-reserved": "cpu=1m", "allowed-unsafe-sysctls": "kernel.msg*,net.core.somaxconn",
		"image-gc-high-threshold": "77", "image-gc-low-threshold": "66", "minimum-image-ttl-duration": "3m", "maximum-image-ttl-duration": "48h",
		"container-log-max-size": "3Mi", "container-log-max-files": "4", "container-log-monitor-interval": "4s", "registry-qps": "7", "registry-burst": "8", "max-parallel-image-pulls": "2",
		"eviction-hard": "memory.available<1Mi,nodefs.available<1%", "eviction-soft": "pid.available<3%", "eviction-soft-grace-period": "pid.available=1m30s",
		"eviction-minimum-reclaim": "nodefs.available=2Mi", "eviction-max-pod-grace-period": "9", "eviction-pressure-transition-period": "1m",
		"max-container-restart-period": "20s", "cluster-domain": "d.test", "cluster-dns": "192.0.2.3", "no-cpu-quota": "true", "seccomp-default": "false", "cgroups-per-qos": "false",
		"tracing-endpoint": "unix:///does/not/exist", "tracing-samples-per-million": "8",
		"image-pull-credentials-verification-policy": "NeverVerifyAllowlistedImages", "preloaded-images-verification-allowlist": "a,b/*",
	}
	for _, name := range slices.Sorted(maps.Keys(flags)) {
		n.flags = append(n.flags, "--"+name+"="+flags[name])
	}
	want := map[string]any{
		"tracing": map[string]any{"endpoint": "unix:///does/not/exist", "samplingRatePerMillion": 8.},
		"maxPods": 7., "podPidsLimit": 1048576., "systemReserved": map[string]any{"memory": "1Mi"}, "kubeReserved": map[string]any{"cpu": "1m"},
		"allowedUnsafeSysctls": []any{"kernel.msg*", "net.core.somaxconn"}, "imageGCHighThresholdPercent": 77., "imageGCLowThresholdPercent": 66.,
		"imageMinimumGCAge": "3m0s", "imageMaximumGCAge": "48h0m0s", "containerLogMaxSize": "3Mi", "containerLogMaxFiles": 4., "containerLogMonitorInterval": "4s",
		"registryPullQPS": 7., "registryBurst": 8., "maxParallelImagePulls": 2., "serializeImagePulls": false,
		"evictionHard": map[string]any{"memory.available": "1Mi", "nodefs.available": "1%"}, "evictionSoft": map[string]any{"pid.available": "3%"},
		"evictionSoftGracePeriod": map[string]any{"pid.available": "1m30s"}, "evictionMinimumReclaim": map[string]any{"nodefs.available": "2Mi"},
		"evictionMaxPodGracePeriod": 9., "evictionPressureTransitionPeriod": "1m0s", "crashLoopBackOff": map[string]any{"maxContainerRestartPeriod": "20s"},
		"clusterDomain": "d.test", "clusterDNS": []any{"192.0.2.3"}, "cpuCFSQuota": false, "seccompDefault": false, "cgroupsPerQOS": false,
		"imagePullCredentialsVerificationPolicy": "NeverVerifyAllowlistedImages", "preloadedImagesVerificationAllowlist": []any{"a", "b/*"},
		"cgroupDriver": "systemd", "containerRuntimeEndpoint": n.socket, "staticPodPath": filepath.Join(n.dir, "manifests"), "healthzPort": 0., "readOnlyPort": 0.,
	}
	n.manifest("web.yaml", webPod)
	shown := func() map[string]any {
		t.Helper()
		stop := n.agent()
		defer stop()
		n.until("config view -o json", `cgroupDriver`) // the runtime has answered
		out, errs, code := n.crisp("config view -o json")
		var got map[string]any
		if err := json.Unmarshal([]byte(out), &got); err != nil || code != 0 {
			t.Fatalf("%v: %s%s", err, out, errs)
		}
		return got
	}
	first := shown()
	for key, value := range want {
		if diff := cmp.Diff(value, first[key]); diff != "" {
			t.Errorf("%s: -want +got\n%s", key, diff)
		}
	}
	text, err := json.Marshal(first)
	if err != nil {
		t.Fatal(err)
	}
	n.flags = []string{"--config", n.file("config.json", string(text))}
	if diff := cmp.Diff(first, shown()); diff != "" {
		t.Errorf("-first +second\n%s", diff)
	}
}
