package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"

	"github.com/crisp-cri/crisp/config"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/server"
	"github.com/crisp-cri/crisp/server/spec"
)

// errNoIDMap says why pods of an OCI runtime use the host's user namespace.
var errNoIDMap = errors.New("its OCI runtime does not map mounts")

// handlers returns the configured runtime handlers. Each is the node's default with
// its own settings on top, limited to what its OCI runtime supports.
func handlers(ctx context.Context, c *config.Config, host spec.Host, log *slog.Logger) (map[string]server.Handler, error) {
	all := map[string]server.Handler{}
	for name, hc := range c.Handlers {
		h, key := server.Handler{SpecHost: host}, "handlers."+name
		var err error
		if h.SpecHost.DefaultCapabilities, err = spec.CapabilityNames(hc.DefaultCapabilities); err != nil {
			return nil, fmt.Errorf("%s: %s.default_capabilities: %w", c.Origin(key+".default_capabilities"), key, err)
		}
		if h.SpecHost.SeccompDefault, err = seccompDefault(hc.SeccompProfile); err != nil {
			return nil, fmt.Errorf("%s: %s.seccomp_profile: %w", c.Origin(key+".seccomp_profile"), key, err)
		}
		if hc.CgroupNamespace != "auto" {
			h.SpecHost.CgroupNamespace = hc.CgroupNamespace
		}
		if hc.Engine != config.Libcontainer {
			if _, err := exec.LookPath(hc.Engine); err != nil {
				return nil, fmt.Errorf("%s: %s.engine: %w", c.Origin(key+".engine"), key, err)
			}
			h.Engine, h.Annotations = hc.Engine, hc.Annotations
			if h.Features, err = oci.AskFeatures(ctx, hc.Engine); err != nil {
				log.Warn("OCI runtime did not report its features", "handler", name, "err", err)
			}
			h.SpecHost.RecursiveRO = host.RecursiveRO && h.Features.RecursiveRO
			if !h.Features.IDMap {
				h.NoUserNS = errNoIDMap
			}
		}
		all[name] = h
	}
	return all, nil
}

// seccompDefault reads a profile that replaces the built-in one; "" means none.
func seccompDefault(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	profile, err := os.ReadFile(path)
	if err == nil {
		_, err = spec.ParseSeccomp(profile, nil, "")
	}
	return profile, err
}
