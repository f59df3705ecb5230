package main

import (
	"github.com/crisp-cri/crisp/config"
	"github.com/crisp-cri/crisp/internal/rootless"
)

// userDefaults sets the places of an ordinary user's files in src.
func userDefaults(src *config.Source) error {
	dirs, err := rootless.UserDirs()
	src.Root, src.Dir, src.State = dirs.Root, dirs.Config, dirs.State
	return err
}

// enterUser executes this program again in the user's namespaces, which it makes, to serve there or to
// do something else.
func enterUser(c *config.Config, serve bool) error {
	addresses := []string{c.Streaming.Address, c.Metrics.Address}
	return rootless.Enter(rootless.Options{State: c.State, Sleeper: beside("crisp-podinit"), Lasting: serve, Addresses: addresses})
}
