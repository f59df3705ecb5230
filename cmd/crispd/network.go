package main

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"

	"github.com/crisp-cri/crisp/config"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/network"
)

// networks are the node's network and those of the handlers that have their own configuration
// directory. They share the records of attachments: each can detach what another has attached.
type networks struct {
	*network.Network
	byDir map[string]*network.Network // includes the node's
}

// openNetworks opens the node's network and the handlers'. awaited returns why the default
// network must not be used now, if the configuration leaves that open.
func openNetworks(c *config.Config, awaited func() string, log *slog.Logger) (_ *networks, err error) {
	var steps undo.Stack
	defer steps.RunIf(&err)
	options, err := networkOptions(c, log)
	if err != nil {
		return nil, err
	}
	if c.CNI.DefaultNetwork == config.Automatic {
		options.Awaited = awaited
	}
	all := &networks{byDir: map[string]*network.Network{}}
	if all.Network, err = network.Open(options); err != nil {
		return nil, err
	}
	all.byDir[options.ConfDir] = all.Network
	steps.Add("network", all.Close)
	options.DefaultDir = "" // a handler with its own directory never uses the default network
	for _, h := range c.Handlers {
		dir := filepath.Clean(h.CNIConfDir)
		if h.CNIConfDir == "" || all.byDir[dir] != nil {
			continue
		}
		options.ConfDir = dir
		n, err := network.Open(options)
		if err != nil {
			return nil, err
		}
		all.byDir[dir] = n
	}
	return all, nil
}

// of returns the network of a configuration directory; "" is the node's.
func (all *networks) of(dir string) *network.Network {
	if n := all.byDir[filepath.Clean(dir)]; n != nil {
		return n
	}
	return all.Network
}

// GC removes everything that is not in keep from every network.
func (all *networks) GC(ctx context.Context, keep []string) error {
	var errs []error
	for _, n := range all.byDir {
		errs = append(errs, n.GC(ctx, keep))
	}
	return errors.Join(errs...)
}

func (all *networks) Close() error {
	var errs []error
	for _, n := range all.byDir {
		errs = append(errs, n.Close())
	}
	return errors.Join(errs...)
}

// networkOptions puts the default network's file among crispd's own files, not into a directory
// that an administrator owns.
func networkOptions(c *config.Config, log *slog.Logger) (network.Options, error) {
	cidrs, err := c.Prefixes()
	if err != nil {
		return network.Options{}, err
	}
	o := network.Options{
		ConfDir:  filepath.Clean(c.CNI.ConfDir),
		BinDirs:  c.CNI.BinDirs,
		CacheDir: filepath.Join(c.Root, "cni", "cache"),
		DataDir:  filepath.Join(c.Root, "cni", "ipam"),
		Instance: instance(c),
		PodCIDRs: cidrs,
		Log:      log,
	}
	if c.CNI.DefaultNetwork != config.Off {
		o.DefaultDir = filepath.Join(c.Root, "cni", "net.d")
	}
	return o, nil
}
