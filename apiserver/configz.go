package apiserver

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"strconv"
	"time"

	"github.com/crisp-cri/crisp/agent"
	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/housekeeping"
	"github.com/crisp-cri/crisp/agent/node"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/pull"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// configz shows the agent's configuration.
type configz struct {
	o     Options
	agent *agent.Agent
}

// Show returns the configuration as a KubeletConfiguration (kubelet.config.k8s.io/v1beta1), for
// /configz. Options that this kind has no key for are left out.
func (z configz) Show() map[string]any {
	c := &z.o.Node
	config := map[string]any{
		"kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1",
		"staticPodPath": z.o.Manifests, "staticPodURL": z.o.URL, "fileCheckFrequency": "20s", "httpCheckFrequency": "20s",
		"containerRuntimeEndpoint": z.o.Endpoint, "imageServiceEndpoint": z.o.Endpoint, "runtimeRequestTimeout": criruntime.CallTimeout.String(),
		"podLogsDir": z.o.LogDir, "resolvConf": z.o.ResolvConf, "clusterDNS": z.o.ClusterDNS, "clusterDomain": z.o.ClusterDomain,
		"seccompDefault": z.o.SeccompDefault, "cpuCFSQuota": !z.o.NoCPUQuota, "cpuCFSQuotaPeriod": "100ms",
		"enableServer": true, "enableDebuggingHandlers": true, "failSwapOn": false, "failCgroupV1": false,
		"maxPods": orDefault(c.MaxPods, node.DefaultPods), "podPidsLimit": orDefault(c.PodPIDs, -1),
		"cgroupRoot": c.CgroupRoot, "cgroupsPerQOS": !c.NoPodCgroups, "allowedUnsafeSysctls": c.UnsafeSysctls,
		"systemReserved": amounts(c.SystemReserved), "kubeReserved": amounts(c.KubeReserved),
		"imageGCHighThresholdPercent": c.Rules.ImageHigh, "imageGCLowThresholdPercent": c.Rules.ImageLow,
		"imageMinimumGCAge": c.Rules.ImageMin.String(), "imageMaximumGCAge": c.Rules.ImageMax.String(),
		"containerLogMaxSize": resource.NewQuantity(c.Rules.LogSize, resource.BinarySI).String(), "containerLogMaxFiles": c.Rules.LogFiles,
		"containerLogMonitorInterval": c.Rules.LogPeriod.String(),
		"registryPullQPS":             z.o.Pulls.PerSec, "registryBurst": z.o.Pulls.Burst,
		"serializeImagePulls": z.o.Pulls.Parallel == 1, "maxParallelImagePulls": z.o.Pulls.Parallel,
		"crashLoopBackOff":                 map[string]string{"maxContainerRestartPeriod": orDefault(z.o.MaxBackoff, podsync.DefaultMaxBackoff).String()},
		"evictionMaxPodGracePeriod":        c.Rules.EvictGrace,
		"evictionPressureTransitionPeriod": c.Rules.EvictTransition.String(),
	}
	config["imagePullCredentialsVerificationPolicy"] = string(cmp.Or(z.o.PullPolicy, pull.NeverVerifyPreloaded))
	if t := z.o.Tracing; t.Endpoint != "" {
		config["tracing"] = map[string]any{"endpoint": t.Endpoint, "samplingRatePerMillion": t.SamplesPerMillion}
	}
	if len(z.o.PullUnasked) > 0 {
		config["preloadedImagesVerificationAllowlist"] = z.o.PullUnasked
	}
	hard, soft, graces := map[string]string{}, map[string]string{}, map[string]string{}
	for _, t := range c.Rules.Evict {
		if t.Grace == 0 {
			hard[string(t.Signal)] = t.String()
			continue
		}
		soft[string(t.Signal)], graces[string(t.Signal)] = t.String(), t.Grace.String()
	}
	config["evictionHard"], config["evictionSoft"], config["evictionSoftGracePeriod"] = hard, soft, graces
	config["evictionMinimumReclaim"] = housekeeping.AmountTexts(c.Rules.EvictReclaim)
	if driver := z.agent.CgroupDriver(); driver != "" {
		config["cgroupDriver"] = driver
	}
	for key, address := range map[string]string{"readOnlyPort": z.o.ReadOnly, "healthzPort": z.o.Health} {
		host, port, err := net.SplitHostPort(address)
		number, numErr := strconv.Atoi(port)
		if err != nil || numErr != nil { // not served
			config[key] = 0
			continue
		}
		config[key] = number
		if key == "healthzPort" {
			config["healthzBindAddress"] = host
		}
	}
	if len(z.o.URLHeader) > 0 {
		// Its values may be secrets.
		names := map[string][]string{}
		for name := range maps.Keys(z.o.URLHeader) {
			names[name] = []string{"<masked>"}
		}
		config["staticPodURLHeader"] = names
	}
	return config
}

// amounts returns quantities as strings, by resource.
func amounts(list v1.ResourceList) map[string]string {
	texts := map[string]string{}
	for name, q := range list {
		texts[fmt.Sprint(name)] = q.String()
	}
	return texts
}

// orDefault returns v if it is more than 0, and else none.
func orDefault[T int64 | time.Duration](v, none T) T {
	if v <= 0 {
		return none
	}
	return v
}
