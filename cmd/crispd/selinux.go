package main

import (
	"log/slog"

	"github.com/crisp-cri/crisp/config"
	"github.com/crisp-cri/crisp/server/selinux"
)

// seLinux is the SELinux policy that labels pods; nil where SELinux is off, here or
// on the whole host.
func seLinux(c *config.Config, log *slog.Logger) *selinux.Policy {
	if !c.SELinux {
		return nil
	}
	p, err := selinux.Open()
	if err != nil {
		log.Warn("containers have no SELinux labels unless they ask for whole ones", "err", err)
	}
	return p
}

// checkSELinux tells whether pods will be labelled.
func checkSELinux(c *config.Config) []finding {
	p, err := selinux.Open()
	switch {
	case !c.SELinux:
		return []finding{{"SELinux", false, "containers have no labels: " + c.Origin("selinux") + " says so", false}}
	case p == nil:
		return []finding{{"SELinux", false, "containers have no labels, and options for labels no effect", false}}
	}
	f := finding{"SELinux policy for containers", err == nil, "", false}
	if err != nil {
		f.follows = "containers have no labels unless they ask for whole ones: " + err.Error()
	}
	return []finding{f}
}
