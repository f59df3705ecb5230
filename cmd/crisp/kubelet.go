package main

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

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

// withoutUnknown removes flags that agent does not have from the arguments of crisp, with a
// warning: tools start a kubelet with flags of all versions.
func (c *cli) withoutUnknown(root *cobra.Command, args []string) []string {
	cmd, rest, err := root.Find(args)
	if err != nil || cmd.Name() != "agent" {
		return args
	}
	cmd.InheritedFlags() // merges the inherited flags into the command's
	return append([]string{cmd.Name()}, c.dropUnknown(cmd.Flags(), rest)...)
}

// dropUnknown removes the flags that are not in fs. The agent takes no arguments, so a word after
// such a flag is its value.
func (c *cli) dropUnknown(fs *pflag.FlagSet, args []string) []string {
	var kept []string
	for i := 0; i < len(args); i++ {
		arg := args[i]
		name, _, assigned := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(arg, "-"), "-"), "=")
		if !strings.HasPrefix(arg, "-") || name == "" || name == "h" || name == "help" {
			kept = append(kept, arg)
			continue
		}
		f := fs.Lookup(name)
		if f == nil {
			fmt.Fprintf(c.stderr, "crisp: warning: --%s is not known and has no effect\n", name)
		} else {
			kept = append(kept, arg)
		}
		switched := f != nil && f.NoOptDefVal != ""
		if value := i + 1; !assigned && !switched && value < len(args) && (f != nil || !strings.HasPrefix(args[value], "-")) {
			if i++; f != nil {
				kept = append(kept, args[i])
			}
		}
	}
	return kept
}

// kubeletKeys has the keys of a KubeletConfiguration that the agent supports, and the flag of each.
var kubeletKeys = map[string]string{
	"staticPodPath": "manifests", "staticPodURL": "manifest-url", "containerRuntimeEndpoint": "runtime-endpoint", "podLogsDir": "log-dir",
	"resolvConf": "resolv-conf", "clusterDNS": "cluster-dns", "clusterDomain": "cluster-domain", "seccompDefault": "seccomp-default",
	"imagePullCredentialsVerificationPolicy": "image-pull-credentials-verification-policy", "preloadedImagesVerificationAllowlist": "preloaded-images-verification-allowlist",
	"maxParallelImagePulls": "max-parallel-image-pulls", "registryPullQPS": "registry-qps", "registryBurst": "registry-burst",
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
		name, value := cmp.Or(kubeletKeys[key], nodeKeys[key]), textOf(config[key])
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
