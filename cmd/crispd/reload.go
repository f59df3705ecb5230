package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/crisp-cri/crisp/config"
	"github.com/crisp-cri/crisp/internal/kernel"
	"github.com/crisp-cri/crisp/server"
	"github.com/crisp-cri/crisp/server/telemetry"
	"github.com/crisp-cri/crisp/streaming"
)

// reload reads the configuration again, applies the changes that need no restart, and logs each
// changed key. A configuration that is invalid or cannot be read changes nothing; the error is
// logged with file and line.
func (d *daemon) reload(ctx context.Context, src config.Source, log *slog.Logger) {
	old := d.config.Load()
	next, changes, err := old.Reload(src)
	var o server.Options
	if err == nil {
		o, err = serverOptions(ctx, next, log)
	}
	if err != nil {
		log.Error("configuration not reloaded", "err", err)
		return
	}
	d.complete(o.Handlers, next)
	setLevel(next.Log.Level)
	warnOfFiles(next, log)
	d.images.Reconfigure(imageSettings(next))
	d.server.Reconfigure(o)
	// Failed changes are not in force: the next reload tries them again.
	failed := map[string]error{}
	if next.Metrics != old.Metrics {
		if e := d.scrape.serve(next.Metrics.Address); e != nil {
			failed["metrics.address"] = e
		}
	}
	if next.Tracing != old.Tracing {
		if e := d.telemetry.Trace(traces(next)); e != nil {
			failed["tracing.endpoint"] = e
		}
	}
	for key, e := range failed {
		next.Keep(old, key)
		err = errors.Join(err, fmt.Errorf("%s: %w", key, e))
	}
	d.config.Store(next)
	for _, ch := range changes {
		takes := ch.Takes
		switch {
		case failed[ch.Key] != nil:
			takes = "not taken"
		case takes == "":
			takes = "needs a restart"
		}
		log.Info("configuration changed", "key", ch.Key, "old", ch.Old, "new", ch.New, "takes", takes, "at", ch.At)
	}
	if err != nil {
		log.Error("configuration reloaded in part", "err", err)
		return
	}
	log.Info("configuration reloaded", "changes", len(changes))
}

// serverOptions returns the server's options that depend on c alone. A reload may change them, but
// for AppArmor.
func serverOptions(ctx context.Context, c *config.Config, log *slog.Logger) (server.Options, error) {
	host := kernel.Probe()
	o := server.Options{
		CDISpecDirs:        c.CDI.SpecDirs,
		HooksDirs:          c.HooksDirs,
		RejectMountSources: c.RejectMountSources,
		RestoreFromImages:  c.RestoreFromImages,
		Streaming:          streaming.Options{IdleTimeout: c.Streaming.IdleTimeout},
	}
	var err error
	if o.SpecHost, err = hostFacts(c, host); err != nil {
		return o, err
	}
	if profiles, name := appArmor(ctx, c, host, log); profiles != nil {
		o.AppArmor, o.SpecHost.AppArmorDefault = profiles, name
	}
	o.Handlers, err = handlers(ctx, c, o.SpecHost, log)
	return o, err
}

// complete sets the networks of handlers that have their own.
func (d *daemon) complete(all map[string]server.Handler, c *config.Config) {
	for name, h := range all {
		if n := d.network.of(c.Handlers[name].CNIConfDir); n != d.network.Network {
			h.Network = n
			all[name] = h
		}
	}
}

func traces(c *config.Config) telemetry.Traces {
	return telemetry.Traces{Endpoint: c.Tracing.Endpoint, PerMillion: c.Tracing.SamplesPerMillion}
}
