package main

import (
	"context"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent"
	"github.com/crisp-cri/crisp/internal/logctx"
	"golang.org/x/sys/unix"
	internalapi "k8s.io/cri-api/pkg/apis"
)

func runAgent(c *cli, args []string) error {
	o := agent.Options{}
	var nodeIP, level string
	fs := c.flags("agent")
	alias := func(p *string, value, about string, names ...string) {
		fs.StringVar(p, names[0], value, about)
		for _, name := range names[1:] {
			fs.StringVar(p, name, value, "the same as --"+names[0]+", by the kubelet's name")
		}
	}
	alias(&o.Manifests, "/etc/crisp/manifests", "`directory` of the manifests", "manifests", "pod-manifest-path")
	alias(&o.Root, c.agentRoot, "the agent's own `directory`", "root", "root-dir")
	alias(&o.LogDir, "", "`directory` of the pods' logs (default ROOT/logs)", "log-dir", "pod-logs-dir")
	alias(&o.NodeName, "", "`name` of this node (default: the host name)", "node-name", "hostname-override")
	fs.StringVar(&nodeIP, "node-ip", "", "`addresses` of this node, with a comma between them (default: found out)")
	fs.StringVar(&o.ResolvConf, "resolv-conf", "/etc/resolv.conf", "`file` that pods get their name servers from")
	fs.BoolVar(&o.SeccompDefault, "seccomp-default", true, "filter the system calls of containers that name no seccomp profile")
	fs.StringVar(&level, "log-level", "info", "debug, info, warn or error")
	rest, err := c.parse(fs, args)
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return usageError("agent takes no argument %q", rest[0])
	}
	for ip := range strings.SplitSeq(nodeIP, ",") {
		if ip == "" {
			continue
		}
		addr, err := netip.ParseAddr(ip)
		if err != nil {
			return usageError("--node-ip %s: not an IP address", ip)
		}
		o.NodeIPs = append(o.NodeIPs, addr)
	}
	if o.Log, err = newLog(c.stderr, level); err != nil {
		return err
	}
	o.Endpoint = c.endpoint
	o.Connect = func(ctx context.Context) (internalapi.RuntimeService, internalapi.ImageManagerService, error) {
		return agent.Dial(ctx, o.Endpoint, patience)
	}
	return agent.Run(c.ctx, o)
}

// newLog logs text to a terminal and JSON to everything else.
func newLog(w io.Writer, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, usageError("--log-level %s: want debug, info, warn or error", level)
	}
	o := &slog.HandlerOptions{Level: l, ReplaceAttr: readable}
	if f, ok := w.(*os.File); ok && isTerminal(f) {
		return slog.New(logctx.Handler(slog.NewTextHandler(w, o))), nil
	}
	return slog.New(logctx.Handler(slog.NewJSONHandler(w, o))), nil
}

// readable writes durations as text: "1.2s", not nanoseconds.
func readable(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		return slog.String(a.Key, a.Value.Duration().Round(time.Microsecond).String())
	}
	return a
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
