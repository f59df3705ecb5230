package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent"
	"github.com/crisp-cri/crisp/agent/autoupdate"
	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/housekeeping"
	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/pull"
	"github.com/crisp-cri/crisp/apiserver"
	"github.com/crisp-cri/crisp/config"
	"github.com/crisp-cri/crisp/internal/kernel"
	"github.com/crisp-cri/crisp/internal/logctx"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	internalapi "k8s.io/cri-api/pkg/apis"
	"sigs.k8s.io/yaml"
)

// agentFlags has the values of flags that apiserver.Options has in another form.
type agentFlags struct {
	headers                           []string
	nodeIP, config, level, pullPolicy string
}

func agentCommand(c *cli) *cobra.Command {
	var o apiserver.Options
	var f agentFlags
	cmd := &cobra.Command{Use: "agent --manifests DIR [flags]", Args: takesNone(""), Short: "run the pods of a directory of manifests"}
	cmd.FParseErrWhitelist.UnknownFlagsHandling = pflag.IgnoreUnknownFlag // see noteUnknown
	fs := cmd.Flags()
	f.add(c, fs, &o)
	takeNode := nodeFlags(fs, &o.Node)
	c.kubeletFlags(fs)
	return runs(cmd, func(_ []string) error {
		if f.config != "" {
			if err := c.readKubeletConfig(fs, f.config); err != nil {
				return err
			}
		}
		if err := takeNode(); err != nil {
			return err
		}
		if err := f.take(&o); err != nil {
			return err
		}
		if os.Geteuid() != 0 {
			return c.joinUser([]string{o.Listen, o.ReadOnly, o.Health})
		}
		o.Root = cmp.Or(o.Root, c.agentRoot)
		o.Version = crispVersion()
		var err error
		if o.Log, err = newLog(c.stderr, f.level); err != nil {
			return err
		}
		o.Endpoint = c.endpoint
		o.Connect = func(ctx context.Context) (internalapi.RuntimeService, internalapi.ImageManagerService, error) {
			return criruntime.Dial(ctx, o.Endpoint, patience)
		}
		return apiserver.Run(c.ctx, o)
	})
}

// add defines the flags except those of nodeFlags.
func (f *agentFlags) add(c *cli, fs *pflag.FlagSet, o *apiserver.Options) {
	alias := func(p *string, value, about string, names ...string) {
		fs.StringVar(p, names[0], value, about)
		for _, name := range names[1:] {
			fs.StringVar(p, name, value, "the same `value` as --"+names[0]+", by the kubelet's name")
		}
	}
	alias(&o.Manifests, c.places().manifests, "`directory` of the manifests", "manifests", "pod-manifest-path")
	alias(&o.Root, "", "the agent's `directory` (default: that of --agent-root)", "root", "root-dir")
	alias(&o.LogDir, "", "`directory` of the pods' logs (default ROOT/logs)", "log-dir", "pod-logs-dir")
	alias(&o.NodeName, "", "`name` of this node (default: the host name at the first start)", "node-name", "hostname-override")
	fs.StringVar(&f.nodeIP, "node-ip", "", "comma-separated `addresses` of this node (default: detected)")
	fs.StringVar(&o.ResolvConf, "resolv-conf", "/etc/resolv.conf", "`file` with the name servers for pods")
	fs.BoolVar(&o.SeccompDefault, "seccomp-default", true, "use RuntimeDefault seccomp for containers without a profile")
	fs.StringSliceVar(&o.ClusterDNS, "cluster-dns", nil, "comma-separated `addresses` of name servers for dnsPolicy ClusterFirst (default: like dnsPolicy Default)")
	fs.StringVar(&o.ClusterDomain, "cluster-domain", "cluster.local", "domain suffix of pods with a subdomain")
	fs.BoolVar(&o.NoCPUQuota, "no-cpu-quota", false, "do not enforce CPU limits")
	fs.IntVar(&o.Pulls.Parallel, "max-parallel-image-pulls", 3, "maximum number of concurrent image pulls")
	fs.Float64Var(&o.Pulls.PerSec, "registry-qps", 5, "maximum number of pulls started per second")
	fs.IntVar(&o.Pulls.Burst, "registry-burst", 10, "maximum number of pulls started at once")
	fs.StringVar(&f.pullPolicy, "image-pull-credentials-verification-policy", string(pull.NeverVerifyPreloaded), "which local images require a pod's credentials: NeverVerify, NeverVerifyPreloadedImages (only those that pods have pulled), NeverVerifyAllowlistedImages or AlwaysVerify")
	fs.StringSliceVar(&o.PullUnasked, "preloaded-images-verification-allowlist", nil, "comma-separated `images` that need no credentials with NeverVerifyAllowlistedImages; NAME/* matches all below")
	fs.StringVar(&o.Plugins, "image-credential-provider-config", "", "`file` with a CredentialProviderConfig, which lists credential provider plugins")
	fs.StringVar(&o.PluginDir, "image-credential-provider-bin-dir", "", "`directory` of those plugins")
	fs.StringVar(&o.LogLinks, "log-links", "", "`directory` of links to the containers' logs (default /var/log/containers, if the logs are in /var/log/pods)")
	fs.DurationVar(&o.UpdateInterval, "auto-update-interval", agent.DefaultUpdateInterval, "how often to look for newer images of pods with the annotation "+manifest.AnnotationAutoUpdate+"; 0 means never")
	fs.DurationVar(&o.UpdateTimeout, "auto-update-timeout", autoupdate.DefaultTimeout, "how long such a pod may take to become ready with a newer image, before it gets the former one back")
	fs.DurationVar(&o.MaxBackoff, "max-container-restart-period", podsync.DefaultMaxBackoff, "maximum back-off of a container that keeps exiting")
	fs.BoolVar(&o.StopPods, "stop-pods-on-exit", false, "stop the pods when the agent ends, by priority; otherwise they keep running, unless systemd shuts the machine down")
	fs.StringVar(&o.URL, "manifest-url", "", "`URL` of an additional manifest")
	fs.StringArrayVar(&f.headers, "manifest-url-header", nil, "`NAME:VALUE` of a header for its requests")
	fs.StringVar(&o.Listen, "listen", "", "loopback `address` to serve the API on, by TLS and plain HTTP, with the token in ROOT/token; ROOT/kubeconfig is for kubectl")
	fs.BoolVar(&o.Page, "page", false, "serve a page for browsers at that address; \"crisp page\" prints a link")
	fs.StringVar(&o.ReadOnly, "read-only-address", "", "loopback `address` to serve a kubelet's read-only port on (10255)")
	fs.StringVar(&o.Health, "healthz-address", "", "loopback `address` of the health checks (the kubelet uses 127.0.0.1:10248)")
	fs.StringVar(&o.Tracing.Endpoint, "tracing-endpoint", "", "OTLP/gRPC `collector` for spans of pod startups: host:port or http://host:port unencrypted, https://host:port, or unix:///path")
	fs.IntVar(&o.Tracing.SamplesPerMillion, "tracing-samples-per-million", 0, "how many `pods` of a million to trace; set it to crispd's tracing.samples_per_million to trace the same ones")
	fs.StringVar(&f.config, "config", "", "`file` with a KubeletConfiguration; keys that the agent lacks are ignored")
	fs.StringVar(&f.level, "log-level", "info", "debug, info, warn or error")
	fs.FuncP("v", "v", "a kubelet's log `number`: 4 and above means --log-level debug", func(text string) error {
		n, err := strconv.Atoi(text)
		if err == nil && n >= 4 {
			f.level = "debug"
		}
		return err
	})
}

// take validates the values and sets the corresponding options.
func (f *agentFlags) take(o *apiserver.Options) error {
	if o.PullPolicy = pull.Policy(f.pullPolicy); !slices.Contains(pull.Policies, o.PullPolicy) {
		return usageError("--image-pull-credentials-verification-policy %s: want one of %v", f.pullPolicy, pull.Policies)
	}
	if o.UpdateTimeout < autoupdate.MinTimeout {
		return usageError("--auto-update-timeout %s: want %s or more", o.UpdateTimeout, autoupdate.MinTimeout)
	}
	if e := o.Tracing.Endpoint; e != "" && !config.IsEndpoint(e) {
		return usageError("--tracing-endpoint %s: want host:port, or a URL of http, https or unix with nothing but that", e)
	}
	if n := o.Tracing.SamplesPerMillion; n < 0 || n > 1e6 {
		return usageError("--tracing-samples-per-million %d: want a number between 0 and 1000000", n)
	}
	if (o.Plugins == "") != (o.PluginDir == "") {
		return usageError("--image-credential-provider-config and --image-credential-provider-bin-dir need each other")
	}
	for _, ip := range commaSeparated(f.nodeIP) {
		addr, err := netip.ParseAddr(ip)
		if err != nil {
			return usageError("--node-ip %s: not an IP address", ip)
		}
		o.NodeIPs = append(o.NodeIPs, addr)
	}
	o.ClusterDNS = slices.DeleteFunc(o.ClusterDNS, func(ip string) bool { return ip == "" }) // "a,"
	for _, ip := range o.ClusterDNS {
		if _, err := netip.ParseAddr(ip); err != nil {
			return usageError("--cluster-dns %s: not an IP address", ip)
		}
	}
	if o.LogLinks == "" && o.LogDir == "/var/log/pods" {
		o.LogLinks = "/var/log/containers"
	}
	for _, text := range f.headers {
		name, value, ok := strings.Cut(text, ":")
		if !ok {
			return usageError("--manifest-url-header %s: want NAME:VALUE", text)
		}
		if o.URLHeader == nil {
			o.URLHeader = http.Header{}
		}
		o.URLHeader.Add(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	return nil
}

// newLog returns a logger that writes text to a terminal and JSON to anything else.
func newLog(w io.Writer, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, usageError("--log-level %s: want debug, info, warn or error", level)
	}
	o := &slog.HandlerOptions{Level: l, ReplaceAttr: readable}
	if terminal(w) != nil {
		return slog.New(logctx.Handler(slog.NewTextHandler(w, o))), nil
	}
	return slog.New(logctx.Handler(slog.NewJSONHandler(w, o))), nil
}

// readable formats durations as text: "1.2s", not nanoseconds.
func readable(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		return slog.String(a.Key, a.Value.Duration().Round(time.Microsecond).String())
	}
	return a
}

// nodeFlags adds the flags for the management of the node, with the kubelet's names. The returned
// function parses their values.
func nodeFlags(fs *pflag.FlagSet, o *agent.NodeConfig) func() error {
	var labels, system, kube, logSize, hard, soft, graces, reclaim string
	var allowPrivileged, perQOS bool
	fs.StringVar(&o.CgroupRoot, "cgroup-root", "", "parent `cgroup` of kubepods (default: the kernel's root)")
	fs.BoolVar(&perQOS, "cgroups-per-qos", true, "make cgroups for pods and QoS classes; otherwise the runtime chooses where to put containers")
	fs.Int64Var(&o.PodPIDs, "pod-max-pids", 0, "maximum number of processes per pod; 0 means no limit")
	fs.Int64Var(&o.MaxPods, "max-pods", 110, "maximum number of pods on this node")
	fs.StringVar(&labels, "node-labels", "", "labels of the node, `KEY=VALUE,…`, for nodeSelector and node affinity")
	fs.StringVar(&system, "system-reserved", "", "resources reserved for the system, `cpu=500m,memory=1Gi`")
	fs.StringVar(&kube, "kube-reserved", "", "more reserved resources")
	fs.StringSliceVar(&o.UnsafeSysctls, "allowed-unsafe-sysctls", nil, "comma-separated unsafe `sysctls` that pods may set; kernel.msg* matches a prefix")
	fs.BoolVar(&allowPrivileged, "allow-privileged", true, "allow privileged containers")
	fs.IntVar(&o.Rules.ImageHigh, "image-gc-high-threshold", housekeeping.DefaultImageHigh, "disk usage in `percent` above which unused images are removed; 100 means never")
	fs.IntVar(&o.Rules.ImageLow, "image-gc-low-threshold", housekeeping.DefaultImageLow, "disk usage in `percent` down to which they are removed")
	fs.DurationVar(&o.Rules.ImageMin, "minimum-image-ttl-duration", housekeeping.DefaultImageMin, "minimum age of an image before it is removed")
	fs.DurationVar(&o.Rules.ImageMax, "maximum-image-ttl-duration", 0, "maximum age of an unused image; 0 means no limit")
	fs.StringVar(&logSize, "container-log-max-size", "10Mi", "`size` at which a container's log is rotated; 0 means never")
	fs.IntVar(&o.Rules.LogFiles, "container-log-max-files", 5, "number of files kept of a log")
	fs.DurationVar(&o.Rules.LogPeriod, "container-log-monitor-interval", housekeeping.DefaultLogPeriod, "how often to check the size of logs")
	fs.StringVar(&hard, "eviction-hard", housekeeping.DefaultEvictHard, "thresholds at which pods are evicted at once, `SIGNAL<AMOUNT,…`; empty for none")
	fs.StringVar(&soft, "eviction-soft", "", "thresholds at which pods are evicted after a grace period")
	fs.StringVar(&graces, "eviction-soft-grace-period", "", "grace periods of --eviction-soft, `SIGNAL=DURATION,…`")
	fs.StringVar(&reclaim, "eviction-minimum-reclaim", "", "how far above its threshold a resource must rise again, `SIGNAL=AMOUNT,…`")
	fs.Int64Var(&o.Rules.EvictGrace, "eviction-max-pod-grace-period", 0, "maximum grace period in `seconds` of a pod evicted at a soft threshold")
	fs.DurationVar(&o.Rules.EvictTransition, "eviction-pressure-transition-period", housekeeping.DefaultEvictTransition, "how long a pressure condition lasts after its cause is gone")
	return func() (err error) {
		o.NoPodCgroups, o.NoPrivileged = !perQOS || kernel.NoCgroups(), !allowPrivileged
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
		size, err := resource.ParseQuantity(logSize)
		if err != nil {
			return usageError("--container-log-max-size %s: %v", logSize, err)
		}
		o.Rules.LogSize = size.Value()
		if o.Rules.LogSize > 0 && o.Rules.LogFiles < 2 {
			return usageError("--container-log-max-files %d: want 2 or more", o.Rules.LogFiles)
		}
		if o.Rules.LogPeriod < housekeeping.MinLogPeriod {
			return usageError("--container-log-monitor-interval %s: want %s or more", o.Rules.LogPeriod, housekeeping.MinLogPeriod)
		}
		if o.Rules.ImageLow > o.Rules.ImageHigh {
			return usageError("--image-gc-low-threshold %d is more than --image-gc-high-threshold %d", o.Rules.ImageLow, o.Rules.ImageHigh)
		}
		if o.Rules.Evict, err = housekeeping.ParseThresholds(hard, soft, graces); err != nil {
			return usageError("eviction thresholds: %v", err)
		}
		if o.Rules.EvictReclaim, err = housekeeping.ParseReclaim(reclaim); err != nil {
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

// kubeletFlags makes the agent accept, with a warning, kubelet flags that tools set and that have
// no effect here.
func (c *cli) kubeletFlags(fs *pflag.FlagSet) {
	const about = "a kubelet flag without effect"
	note := func(name string) func(string) error {
		return func(string) error {
			fmt.Fprintf(c.stderr, "crisp: warning: --%s has no effect\n", name)
			return nil
		}
	}
	for _, name := range []string{"config-dir", "kubeconfig", "image-service-endpoint", "feature-gates", "runtime-cgroups"} {
		fs.Func(name, about, note(name))
	}
	for _, name := range []string{"fail-swap-on", "fail-cgroupv1"} {
		fs.BoolFunc(name, about, note(name))
	}
}

// noteUnknown warns about flags that agent does not have, which it drops with their values: tools
// start a kubelet with flags of all versions. The arguments that it returns have them as --name:
// pflag would read -name as flags of one letter each.
func (c *cli) noteUnknown(root *cobra.Command, args []string) []string {
	cmd, rest, err := root.Find(args)
	if err != nil || cmd.Name() != "agent" {
		return args
	}
	cmd.InheritedFlags() // merges the inherited flags into the command's
	value := false       // the next one is the value of a flag
	for i, arg := range rest {
		text := strings.TrimPrefix(strings.TrimPrefix(arg, "-"), "-")
		name, _, assigned := strings.Cut(text, "=")
		switch f := cmd.Flags().Lookup(name); {
		case value || !strings.HasPrefix(arg, "-") || name == "" || name == "h" || name == "help":
			value = false
		case f != nil:
			value = !assigned && f.NoOptDefVal == ""
		default:
			fmt.Fprintf(c.stderr, "crisp: warning: --%s is not known and has no effect\n", name)
			rest[i] = "--" + text
		}
	}
	return append([]string{cmd.Name()}, rest...)
}

// kubeletKeys has the keys of a KubeletConfiguration that the agent supports, and the flag of each.
var kubeletKeys = map[string]string{
	"staticPodPath": "manifests", "staticPodURL": "manifest-url", "containerRuntimeEndpoint": "runtime-endpoint", "podLogsDir": "log-dir",
	"resolvConf": "resolv-conf", "clusterDNS": "cluster-dns", "clusterDomain": "cluster-domain", "seccompDefault": "seccomp-default",
	"imagePullCredentialsVerificationPolicy": "image-pull-credentials-verification-policy", "preloadedImagesVerificationAllowlist": "preloaded-images-verification-allowlist",
	"maxParallelImagePulls": "max-parallel-image-pulls", "registryPullQPS": "registry-qps", "registryBurst": "registry-burst",
	"cgroupRoot": "cgroup-root", "cgroupsPerQOS": "cgroups-per-qos", "podPidsLimit": "pod-max-pids", "maxPods": "max-pods",
	"systemReserved": "system-reserved", "kubeReserved": "kube-reserved", "allowedUnsafeSysctls": "allowed-unsafe-sysctls",
	"imageGCHighThresholdPercent": "image-gc-high-threshold", "imageGCLowThresholdPercent": "image-gc-low-threshold",
	"imageMinimumGCAge": "minimum-image-ttl-duration", "imageMaximumGCAge": "maximum-image-ttl-duration",
	"containerLogMaxSize": "container-log-max-size", "containerLogMaxFiles": "container-log-max-files", "containerLogMonitorInterval": "container-log-monitor-interval",
	"evictionHard": "eviction-hard", "evictionSoft": "eviction-soft", "evictionSoftGracePeriod": "eviction-soft-grace-period", "evictionMinimumReclaim": "eviction-minimum-reclaim",
	"evictionMaxPodGracePeriod": "eviction-max-pod-grace-period", "evictionPressureTransitionPeriod": "eviction-pressure-transition-period",
}

// always has the keys of a KubeletConfiguration with a fixed value in the agent. /configz reports
// them too.
var always = map[string]any{
	"enableServer": true, "enableDebuggingHandlers": true, "failSwapOn": false, "failCgroupV1": false, "cpuCFSQuotaPeriod": "100ms",
	"fileCheckFrequency": "20s", "httpCheckFrequency": "20s", "runtimeRequestTimeout": "2m0s", "serializeImagePulls": false,
}

// readKubeletConfig sets the flags that are not on the command line from a file with a
// KubeletConfiguration (kubelet.config.k8s.io/v1beta1). It warns about keys without effect.
func (c *cli) readKubeletConfig(fs *pflag.FlagSet, path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var config map[string]any
	if err := yaml.Unmarshal(data, &config); err != nil {
		return usageError("%s: %v", path, err)
	}
	if kind := config["kind"]; kind != "KubeletConfiguration" {
		return usageError("%s: kind is %v, want KubeletConfiguration", path, kind)
	}
	given := map[string]bool{}
	fs.Visit(func(f *pflag.Flag) { given[f.Name] = true })
	for _, key := range slices.Sorted(maps.Keys(config)) {
		if value, ok := always[key]; config[key] == nil || ok && config[key] == value {
			continue
		}
		name, value := kubeletKeys[key], textOf(config[key])
		if m, ok := config[key].(map[string]any); ok {
			value = keyed(key, m)
		}
		switch key {
		case "kind", "apiVersion", "healthzBindAddress":
			continue
		case "tracing":
			m, _ := config[key].(map[string]any)
			if rate := "tracing-samples-per-million"; !given[rate] && m["samplingRatePerMillion"] != nil {
				if err := fs.Set(rate, textOf(m["samplingRatePerMillion"])); err != nil {
					return usageError("%s: tracing.samplingRatePerMillion: %v", path, err)
				}
			}
			name, value = "tracing-endpoint", "localhost:4317" // the kubelet's default
			if e, ok := m["endpoint"].(string); ok {
				value = e
			}
		case "cpuCFSQuota":
			name, value = "no-cpu-quota", strconv.FormatBool(config[key] == false)
		case "crashLoopBackOff":
			m, _ := config[key].(map[string]any)
			name, value = "max-container-restart-period", fmt.Sprint(m["maxContainerRestartPeriod"])
		case "serializeImagePulls":
			name, value = "max-parallel-image-pulls", "1"
		case "readOnlyPort":
			name, value = "read-only-address", addressOf("127.0.0.1", value)
		case "healthzPort":
			host, _ := config["healthzBindAddress"].(string)
			name, value = "healthz-address", addressOf(cmp.Or(host, "127.0.0.1"), value)
		}
		switch {
		case name == "":
			fmt.Fprintf(c.stderr, "crisp: warning: %s: %s has no effect\n", path, key)
		case given[name]: // the command line takes precedence
		default:
			if err := fs.Set(name, value); err != nil {
				return usageError("%s: %s: %v", path, key, err)
			}
		}
	}
	return nil
}

// addressOf returns host and port; "" if port is 0.
func addressOf(host, port string) string {
	if port == "0" {
		return ""
	}
	return host + ":" + port
}

// textOf returns a value in the format of its flag.
func textOf(v any) string {
	switch v := v.(type) {
	case float64: // JSON has only this type of number; flags accept no exponents
		return strconv.FormatFloat(v, 'f', -1, 64)
	case []any:
		texts := make([]string, len(v))
		for i, item := range v {
			texts[i] = textOf(item)
		}
		return strings.Join(texts, ",")
	}
	return fmt.Sprint(v)
}
