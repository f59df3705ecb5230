package main

import (
	"maps"
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/agent/evict"
	"github.com/crisp-cri/crisp/agent/host"
	"github.com/crisp-cri/crisp/agent/imagegc"
	"github.com/crisp-cri/crisp/agent/logrotate"
	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// nodeFlags adds the flags for the management of the node, with the kubelet's names. The returned
// function parses their values.
func nodeFlags(fs *pflag.FlagSet, o *host.Config) func() error {
	var labels, sysctls, system, kube, logSize, hard, soft, graces, reclaim string
	var allowPrivileged, perQOS bool
	fs.StringVar(&o.CgroupRoot, "cgroup-root", "", "parent `cgroup` of kubepods (default: the kernel's root)")
	fs.BoolVar(&perQOS, "cgroups-per-qos", true, "make cgroups for pods and QoS classes; otherwise the runtime chooses where to put containers")
	fs.Int64Var(&o.PodPIDs, "pod-max-pids", 0, "maximum number of processes per pod; 0 means no limit")
	fs.Int64Var(&o.MaxPods, "max-pods", 110, "maximum number of pods on this node")
	fs.StringVar(&labels, "node-labels", "", "labels of the node, `KEY=VALUE,…`, for nodeSelector and node affinity")
	fs.StringVar(&system, "system-reserved", "", "resources reserved for the system, `cpu=500m,memory=1Gi`")
	fs.StringVar(&kube, "kube-reserved", "", "more reserved resources")
	fs.StringVar(&sysctls, "allowed-unsafe-sysctls", "", "comma-separated unsafe `sysctls` that pods may set; kernel.msg* matches a prefix")
	fs.BoolVar(&allowPrivileged, "allow-privileged", true, "allow privileged containers")
	fs.IntVar(&o.Rules.ImageHigh, "image-gc-high-threshold", imagegc.DefaultHigh, "disk usage in `percent` above which unused images are removed; 100 means never")
	fs.IntVar(&o.Rules.ImageLow, "image-gc-low-threshold", imagegc.DefaultLow, "disk usage in `percent` down to which they are removed")
	fs.DurationVar(&o.Rules.ImageMin, "minimum-image-ttl-duration", imagegc.DefaultMin, "minimum age of an image before it is removed")
	fs.DurationVar(&o.Rules.ImageMax, "maximum-image-ttl-duration", 0, "maximum age of an unused image; 0 means no limit")
	fs.StringVar(&logSize, "container-log-max-size", "10Mi", "`size` at which a container's log is rotated; 0 means never")
	fs.IntVar(&o.Rules.LogFiles, "container-log-max-files", 5, "number of files kept of a log")
	fs.DurationVar(&o.Rules.LogPeriod, "container-log-monitor-interval", logrotate.DefaultPeriod, "how often to check the size of logs")
	fs.StringVar(&hard, "eviction-hard", evict.DefaultHard, "thresholds at which pods are evicted at once, `SIGNAL<AMOUNT,…`; empty for none")
	fs.StringVar(&soft, "eviction-soft", "", "thresholds at which pods are evicted after a grace period")
	fs.StringVar(&graces, "eviction-soft-grace-period", "", "grace periods of --eviction-soft, `SIGNAL=DURATION,…`")
	fs.StringVar(&reclaim, "eviction-minimum-reclaim", "", "how far above its threshold a resource must rise again, `SIGNAL=AMOUNT,…`")
	fs.Int64Var(&o.Rules.EvictGrace, "eviction-max-pod-grace-period", 0, "maximum grace period in `seconds` of a pod evicted at a soft threshold")
	fs.DurationVar(&o.Rules.EvictTransition, "eviction-pressure-transition-period", evict.DefaultTransition, "how long a pressure condition lasts after its cause is gone")
	return func() (err error) {
		o.NoPodCgroups, o.NoPrivileged = !perQOS, !allowPrivileged
		o.PodPIDs = max(o.PodPIDs, 0) // the kubelet's -1 means no limit too
		if o.NodeLabels, err = assignments("node-labels", labels); err != nil {
			return err
		}
		if o.SystemReserved, err = reserved("system-reserved", system); err != nil {
			return err
		}
		if o.KubeReserved, err = reserved("kube-reserved", kube); err != nil {
			return err
		}
		if sysctls != "" {
			o.UnsafeSysctls = strings.Split(sysctls, ",")
		}
		size, err := resource.ParseQuantity(logSize)
		if err != nil {
			return usageError("--container-log-max-size %s: %v", logSize, err)
		}
		o.Rules.LogSize = size.Value()
		if o.Rules.LogSize > 0 && o.Rules.LogFiles < 2 {
			return usageError("--container-log-max-files %d: want 2 or more", o.Rules.LogFiles)
		}
		if o.Rules.LogPeriod < logrotate.MinPeriod {
			return usageError("--container-log-monitor-interval %s: want %s or more", o.Rules.LogPeriod, logrotate.MinPeriod)
		}
		if o.Rules.ImageLow > o.Rules.ImageHigh {
			return usageError("--image-gc-low-threshold %d is more than --image-gc-high-threshold %d", o.Rules.ImageLow, o.Rules.ImageHigh)
		}
		if o.Rules.Evict, err = evict.Parse(hard, soft, graces); err != nil {
			return usageError("eviction thresholds: %v", err)
		}
		if o.Rules.EvictReclaim, err = evict.ParseReclaim(reclaim); err != nil {
			return usageError("--eviction-minimum-reclaim: %v", err)
		}
		return nil
	}
}

// commaSeparated returns the non-empty words of a list.
func commaSeparated(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
}

// assignments parses KEY=VALUE,…
func assignments(name, text string) (map[string]string, error) {
	m := map[string]string{}
	for _, item := range commaSeparated(text) {
		key, value, ok := strings.Cut(item, "=")
		if !ok {
			return nil, usageError("--%s %s: want KEY=VALUE", name, item)
		}
		m[key] = value
	}
	return m, nil
}

func reserved(flag, text string) (v1.ResourceList, error) {
	m, err := assignments(flag, text)
	if err != nil {
		return nil, err
	}
	list := v1.ResourceList{}
	for name, amount := range m {
		q, err := resource.ParseQuantity(amount)
		if err != nil {
			return nil, usageError("--%s %s=%s: %v", flag, name, amount, err)
		}
		list[v1.ResourceName(name)] = q
	}
	return list, nil
}

// nodeKeys has the keys of a KubeletConfiguration for these flags.
var nodeKeys = map[string]string{
	"cgroupRoot": "cgroup-root", "cgroupsPerQOS": "cgroups-per-qos", "podPidsLimit": "pod-max-pids", "maxPods": "max-pods",
	"systemReserved": "system-reserved", "kubeReserved": "kube-reserved", "allowedUnsafeSysctls": "allowed-unsafe-sysctls",
	"imageGCHighThresholdPercent": "image-gc-high-threshold", "imageGCLowThresholdPercent": "image-gc-low-threshold",
	"imageMinimumGCAge": "minimum-image-ttl-duration", "imageMaximumGCAge": "maximum-image-ttl-duration",
	"containerLogMaxSize": "container-log-max-size", "containerLogMaxFiles": "container-log-max-files", "containerLogMonitorInterval": "container-log-monitor-interval",
	"evictionHard": "eviction-hard", "evictionSoft": "eviction-soft", "evictionSoftGracePeriod": "eviction-soft-grace-period", "evictionMinimumReclaim": "eviction-minimum-reclaim",
	"evictionMaxPodGracePeriod": "eviction-max-pod-grace-period", "evictionPressureTransitionPeriod": "eviction-pressure-transition-period",
}

// keyed returns a mapping of the configuration in the format of its flag.
func keyed(key string, m map[string]any) string {
	sign := "="
	if key == "evictionHard" || key == "evictionSoft" {
		sign = "<"
	}
	var list []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		list = append(list, name+sign+textOf(m[name]))
	}
	return strings.Join(list, ",")
}
