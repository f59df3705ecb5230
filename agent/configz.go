package agent

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"strconv"
	"time"

	"github.com/crisp-cri/crisp/agent/evict"
	"github.com/crisp-cri/crisp/agent/node"
	"github.com/crisp-cri/crisp/agent/pulled"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// kubeletConfig is what /configz shows: what the agent runs with, in the words of a
// KubeletConfiguration (kubelet.config.k8s.io/v1beta1). What it has no key for is
// not in it.
func (a *agent) kubeletConfig() map[string]any {
	c := &a.o.Care
	config := map[string]any{
		"kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1",
		"staticPodPath": a.o.Manifests, "staticPodURL": a.o.URL, "fileCheckFrequency": "20s", "httpCheckFrequency": "20s",
		"containerRuntimeEndpoint": a.o.Endpoint, "imageServiceEndpoint": a.o.Endpoint, "runtimeRequestTimeout": rpcTimeout.String(),
		"podLogsDir": a.o.LogDir, "resolvConf": a.o.ResolvConf, "clusterDNS": a.o.ClusterDNS, "clusterDomain": a.o.ClusterDomain,
		"seccompDefault": a.o.SeccompDefault, "cpuCFSQuota": !a.o.NoCPUQuota, "cpuCFSQuotaPeriod": "100ms",
		"enableServer": true, "enableDebuggingHandlers": true, "failSwapOn": false, "failCgroupV1": false,
		"maxPods": orDefault(c.MaxPods, node.DefaultPods), "podPidsLimit": orDefault(c.PodPIDs, -1),
		"cgroupRoot": c.CgroupRoot, "cgroupsPerQOS": !c.NoPodCgroups, "allowedUnsafeSysctls": c.UnsafeSysctls,
		"systemReserved": amounts(c.SystemReserved), "kubeReserved": amounts(c.KubeReserved),
		"imageGCHighThresholdPercent": c.ImageHigh, "imageGCLowThresholdPercent": c.ImageLow,
		"imageMinimumGCAge": c.ImageMin.String(), "imageMaximumGCAge": c.ImageMax.String(),
		"containerLogMaxSize": resource.NewQuantity(c.LogSize, resource.BinarySI).String(), "containerLogMaxFiles": c.LogFiles,
		"containerLogMonitorInterval": c.LogPeriod.String(),
		"registryPullQPS":             a.o.Pulls.PerSec, "registryBurst": a.o.Pulls.Burst,
		"serializeImagePulls": a.o.Pulls.Parallel == 1, "maxParallelImagePulls": a.o.Pulls.Parallel,
		"crashLoopBackOff":                 map[string]string{"maxContainerRestartPeriod": orDefault(a.o.MaxBackoff, 300*time.Second).String()},
		"evictionMaxPodGracePeriod":        c.EvictGrace,
		"evictionPressureTransitionPeriod": c.EvictTransition.String(),
	}
	config["imagePullCredentialsVerificationPolicy"] = string(cmp.Or(a.o.PullPolicy, pulled.NeverVerifyPreloaded))
	if len(a.o.PullUnasked) > 0 {
		config["preloadedImagesVerificationAllowlist"] = a.o.PullUnasked
	}
	hard, soft, graces := map[string]string{}, map[string]string{}, map[string]string{}
	for _, t := range c.Evict {
		if t.Grace == 0 {
			hard[string(t.Signal)] = t.String()
			continue
		}
		soft[string(t.Signal)], graces[string(t.Signal)] = t.String(), t.Grace.String()
	}
	config["evictionHard"], config["evictionSoft"], config["evictionSoftGracePeriod"] = hard, soft, graces
	config["evictionMinimumReclaim"] = evict.Texts(c.EvictReclaim)
	if driver := a.grants.driver.Load(); driver != nil {
		config["cgroupDriver"] = *driver
	}
	for key, address := range map[string]string{"readOnlyPort": a.o.Serve.ReadOnly, "healthzPort": a.o.Serve.Health} {
		host, port, err := net.SplitHostPort(address)
		number, numErr := strconv.Atoi(port)
		if err != nil || numErr != nil { // it is not served
			config[key] = 0
			continue
		}
		config[key] = number
		if key == "healthzPort" {
			config["healthzBindAddress"] = host
		}
	}
	if len(a.o.URLHeader) > 0 {
		// Its values may be secrets.
		names := map[string][]string{}
		for name := range maps.Keys(a.o.URLHeader) {
			names[name] = []string{"<masked>"}
		}
		config["staticPodURLHeader"] = names
	}
	return config
}

// amounts writes what a KubeletConfiguration has as texts.
func amounts(list v1.ResourceList) map[string]string {
	texts := map[string]string{}
	for name, q := range list {
		texts[fmt.Sprint(name)] = q.String()
	}
	return texts
}

// orDefault is v, or what is meant by none.
func orDefault[T int64 | time.Duration](v, none T) T {
	if v <= 0 {
		return none
	}
	return v
}
