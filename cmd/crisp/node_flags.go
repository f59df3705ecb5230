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

// nodeFlags are those of how the agent looks after the node, by the kubelet's
// names. The returned function takes in what was given.
func nodeFlags(fs *pflag.FlagSet, o *host.Config) func() error {
	var labels, sysctls, system, kube, logSize, hard, soft, graces, reclaim string
	var allowPrivileged, perQOS bool
	fs.StringVar(&o.CgroupRoot, "cgroup-root", "", "`cgroup` that kubepods is made in (default: the kernel's root)")
	fs.BoolVar(&perQOS, "cgroups-per-qos", true, "make cgroups for pods and their classes; else the runtime puts containers where it likes")
	fs.Int64Var(&o.PodPIDs, "pod-max-pids", 0, "how many processes a pod may have; 0 is no limit")
	fs.Int64Var(&o.MaxPods, "max-pods", 110, "how many pods this node takes")
	fs.StringVar(&labels, "node-labels", "", "labels of the node, `KEY=VALUE,…`, for nodeSelector and node affinity")
	fs.StringVar(&system, "system-reserved", "", "what of the node is not for pods, `cpu=500m,memory=1Gi`")
	fs.StringVar(&kube, "kube-reserved", "", "more that is not for pods")
	fs.StringVar(&sysctls, "allowed-unsafe-sysctls", "", "`sysctls` that pods may set besides the safe ones, with a comma between them; kernel.msg* is all that begin so")
	fs.BoolVar(&allowPrivileged, "allow-privileged", true, "run privileged containers")
	fs.IntVar(&o.Rules.ImageHigh, "image-gc-high-threshold", imagegc.DefaultHigh, "`percent` of the images' disk used from which unused images are removed; 100 is never")
	fs.IntVar(&o.Rules.ImageLow, "image-gc-low-threshold", imagegc.DefaultLow, "`percent` down to which")
	fs.DurationVar(&o.Rules.ImageMin, "minimum-image-ttl-duration", imagegc.DefaultMin, "how long an image stays at least")
	fs.DurationVar(&o.Rules.ImageMax, "maximum-image-ttl-duration", 0, "how long an image stays that nobody uses; 0 is for ever")
	fs.StringVar(&logSize, "container-log-max-size", "10Mi", "`size` from which a container's log is rotated; 0 is never")
	fs.IntVar(&o.Rules.LogFiles, "container-log-max-files", 5, "how many files of a log are kept")
	fs.DurationVar(&o.Rules.LogPeriod, "container-log-monitor-interval", logrotate.DefaultPeriod, "how often the sizes of logs are looked at")
	fs.StringVar(&hard, "eviction-hard", evict.DefaultHard, "what may not become less without pods being evicted at once, `SIGNAL<AMOUNT,…`; empty is nothing")
	fs.StringVar(&soft, "eviction-soft", "", "what may not become less for longer than its grace period")
	fs.StringVar(&graces, "eviction-soft-grace-period", "", "grace periods of --eviction-soft, `SIGNAL=DURATION,…`")
	fs.StringVar(&reclaim, "eviction-minimum-reclaim", "", "by how much more than its threshold there must be of something again, `SIGNAL=AMOUNT,…`")
	fs.Int64Var(&o.Rules.EvictGrace, "eviction-max-pod-grace-period", 0, "`seconds` that a pod gets at most when it is evicted at a soft threshold")
	fs.DurationVar(&o.Rules.EvictTransition, "eviction-pressure-transition-period", evict.DefaultTransition, "how long pressure lasts when its cause has gone")
	return func() (err error) {
		o.NoPodCgroups, o.NoPrivileged = !perQOS, !allowPrivileged
		o.PodPIDs = max(o.PodPIDs, 0) // a kubelet's -1 is no limit too
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

// commaSeparated returns the words of a text, but no empty ones.
func commaSeparated(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
}

// assignments reads KEY=VALUE,…
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

// nodeKeys are the keys of a KubeletConfiguration for these flags.
var nodeKeys = map[string]string{
	"cgroupRoot": "cgroup-root", "cgroupsPerQOS": "cgroups-per-qos", "podPidsLimit": "pod-max-pids", "maxPods": "max-pods",
	"systemReserved": "system-reserved", "kubeReserved": "kube-reserved", "allowedUnsafeSysctls": "allowed-unsafe-sysctls",
	"imageGCHighThresholdPercent": "image-gc-high-threshold", "imageGCLowThresholdPercent": "image-gc-low-threshold",
	"imageMinimumGCAge": "minimum-image-ttl-duration", "imageMaximumGCAge": "maximum-image-ttl-duration",
	"containerLogMaxSize": "container-log-max-size", "containerLogMaxFiles": "container-log-max-files", "containerLogMonitorInterval": "container-log-monitor-interval",
	"evictionHard": "eviction-hard", "evictionSoft": "eviction-soft", "evictionSoftGracePeriod": "eviction-soft-grace-period", "evictionMinimumReclaim": "eviction-minimum-reclaim",
	"evictionMaxPodGracePeriod": "eviction-max-pod-grace-period", "evictionPressureTransitionPeriod": "eviction-pressure-transition-period",
}

// keyed writes a mapping of the configuration as its flag would have it.
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
