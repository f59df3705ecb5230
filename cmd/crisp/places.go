package main

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/crisp-cri/crisp/internal/rootless"
)

// places are the defaults of flags.
type places struct{ endpoint, agentRoot, manifests, authFile string }

// places returns those of an ordinary user who has an instance; otherwise root's, as for the group crisp.
func (c *cli) places() places {
	root := places{defaultEndpoint, defaultAgentRoot, "/etc/crisp/pods", defaultAuthFile}
	if !rootless.OfUser() {
		return root
	}
	dirs, err := rootless.UserDirs()
	if err != nil {
		return root
	}
	if _, err := os.Stat(dirs.State); err != nil && !rootless.Entered() {
		return root
	}
	return places{
		"unix://" + filepath.Join(dirs.State, "crisp.sock"), dirs.Root + "-agent", filepath.Join(dirs.Config, "pods"),
		filepath.Join(filepath.Dir(dirs.Config), "containers", "auth.json"),
	}
}

// joinUser runs a user's agent in the namespaces of its crispd, with sockets at addresses outside.
func (c *cli) joinUser(addresses []string) error {
	path, ok := strings.CutPrefix(c.endpoint, "unix://")
	if !ok || c.endpoint == defaultEndpoint {
		dirs, err := rootless.UserDirs()
		if err != nil {
			return err
		}
		path = filepath.Join(dirs.State, "crisp.sock")
	}
	return rootless.Join(c.ctx, filepath.Dir(path), addresses)
}
