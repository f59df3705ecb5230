package main

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent"
	"github.com/crisp-cri/crisp/agent/criconn"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/pullrecords"
	"github.com/crisp-cri/crisp/config"
	"github.com/crisp-cri/crisp/internal/logctx"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	internalapi "k8s.io/cri-api/pkg/apis"
)

// agentFlags has the values of flags that agent.Options has in another form.
type agentFlags struct {
	headers                                                    []string
	nodeIP, clusterDNS, config, level, pullPolicy, pullUnasked string
}

func agentCommand(c *cli) *cobra.Command {
	var o agent.Options
	var f agentFlags
	cmd := &cobra.Command{Use: "agent --manifests DIR [flags]", Args: takesNone(""), Short: "run the pods of a directory of manifests"}
	fs := cmd.Flags()
	f.add(fs, &o)
	takeNode := nodeFlags(fs, &o.Node)
	c.kubeletFlags(fs)
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
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
		o.Root = cmp.Or(o.Root, c.agentRoot)
		o.Serve.Version = crispVersion()
		var err error
		if o.Log, err = newLog(c.stderr, f.level); err != nil {
			return err
		}
		o.Endpoint = c.endpoint
		o.Connect = func(ctx context.Context) (internalapi.RuntimeService, internalapi.ImageManagerService, error) {
			return criconn.Dial(ctx, o.Endpoint, patience)
		}
		return agent.Run(c.ctx, o)
	}
	return cmd
}

// add defines the flags except those of nodeFlags.
func (f *agentFlags) add(fs *pflag.FlagSet, o *agent.Options) {
	alias := func(p *string, value, about string, names ...string) {
		fs.StringVar(p, names[0], value, about)
		for _, name := range names[1:] {
			fs.StringVar(p, name, value, "the same `value` as --"+names[0]+", by the kubelet's name")
		}
	}
	alias(&o.Manifests, "/etc/crisp/pods", "`directory` of the manifests", "manifests", "pod-manifest-path")
	alias(&o.Root, "", "the agent's `directory` (default: that of --agent-root)", "root", "root-dir")
	alias(&o.LogDir, "", "`directory` of the pods' logs (default ROOT/logs)", "log-dir", "pod-logs-dir")
	alias(&o.NodeName, "", "`name` of this node (default: the host name)", "node-name", "hostname-override")
	fs.StringVar(&f.nodeIP, "node-ip", "", "comma-separated `addresses` of this node (default: detected)")
	fs.StringVar(&o.ResolvConf, "resolv-conf", "/etc/resolv.conf", "`file` with the name servers for pods")
	fs.BoolVar(&o.SeccompDefault, "seccomp-default", true, "use RuntimeDefault seccomp for containers without a profile")
	fs.StringVar(&f.clusterDNS, "cluster-dns", "", "comma-separated `addresses` of name servers for dnsPolicy ClusterFirst (default: like dnsPolicy Default)")
	fs.StringVar(&o.ClusterDomain, "cluster-domain", "cluster.local", "domain suffix of pods with a subdomain")
	fs.BoolVar(&o.NoCPUQuota, "no-cpu-quota", false, "do not enforce CPU limits")
	fs.IntVar(&o.Pulls.Parallel, "max-parallel-image-pulls", 3, "maximum number of concurrent image pulls")
	fs.Float64Var(&o.Pulls.PerSec, "registry-qps", 5, "maximum number of pulls started per second")
	fs.IntVar(&o.Pulls.Burst, "registry-burst", 10, "maximum number of pulls started at once")
	fs.StringVar(&f.pullPolicy, "image-pull-credentials-verification-policy", string(pullrecords.NeverVerifyPreloaded), "which local images require a pod's credentials: NeverVerify, NeverVerifyPreloadedImages (only those that pods have pulled), NeverVerifyAllowlistedImages or AlwaysVerify")
	fs.StringVar(&f.pullUnasked, "preloaded-images-verification-allowlist", "", "comma-separated `images` that need no credentials with NeverVerifyAllowlistedImages; NAME/* matches all below")
	fs.StringVar(&o.Plugins, "image-credential-provider-config", "", "`file` with a CredentialProviderConfig, which lists credential provider plugins")
	fs.StringVar(&o.PluginDir, "image-credential-provider-bin-dir", "", "`directory` of those plugins")
	fs.StringVar(&o.LogLinks, "log-links", "", "`directory` of links to the containers' logs (default /var/log/containers, if the logs are in /var/log/pods)")
	fs.DurationVar(&o.MaxBackoff, "max-container-restart-period", podsync.DefaultMaxBackoff, "maximum back-off of a container that keeps exiting")
	fs.BoolVar(&o.StopPods, "stop-pods-on-exit", false, "stop the pods when the agent ends, by priority; otherwise they keep running")
	fs.StringVar(&o.URL, "manifest-url", "", "`URL` of an additional manifest")
	fs.StringArrayVar(&f.headers, "manifest-url-header", nil, "`NAME:VALUE` of a header for its requests")
	fs.StringVar(&o.Serve.Listen, "listen", "", "loopback `address` to serve the API on, by TLS and plain HTTP, with the token in ROOT/token; ROOT/kubeconfig is for kubectl")
	fs.BoolVar(&o.Serve.Page, "page", false, "serve a page for browsers at that address; \"crisp page\" prints a link")
	fs.StringVar(&o.Serve.ReadOnly, "read-only-address", "", "loopback `address` to serve a kubelet's read-only port on (10255)")
	fs.StringVar(&o.Serve.Health, "healthz-address", "", "loopback `address` of the health checks (the kubelet uses 127.0.0.1:10248)")
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
func (f *agentFlags) take(o *agent.Options) error {
	if o.PullPolicy = pullrecords.Policy(f.pullPolicy); !slices.Contains(pullrecords.Policies, o.PullPolicy) {
		return usageError("--image-pull-credentials-verification-policy %s: want one of %v", f.pullPolicy, pullrecords.Policies)
	}
	o.PullUnasked = commaSeparated(f.pullUnasked)
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
	for _, ip := range commaSeparated(f.clusterDNS) {
		if _, err := netip.ParseAddr(ip); err != nil {
			return usageError("--cluster-dns %s: not an IP address", ip)
		}
		o.ClusterDNS = append(o.ClusterDNS, ip)
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
