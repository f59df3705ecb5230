package main

import (
	"github.com/crisp-cri/crisp/config"
	"github.com/crisp-cri/crisp/server"
	"github.com/crisp-cri/crisp/server/telemetry"
)

// complete gives handlers what does not follow from the configuration alone.
func (d *daemon) complete(all map[string]server.Handler, c *config.Config) {
	for name, h := range all {
		if h.NoUserNS == nil {
			h.NoUserNS = d.noUserNS
		}
		if n := d.network.of(c.Handlers[name].CNIConfDir); n != d.network.Network {
			h.Network = n
		}
		all[name] = h
	}
}

func traces(c *config.Config) telemetry.Traces {
	return telemetry.Traces{Endpoint: c.Tracing.Endpoint, PerMillion: c.Tracing.SamplesPerMillion}
}
