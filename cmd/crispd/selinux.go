package main

import (
	"context"
	"log/slog"

	"github.com/crisp-cri/crisp/config"
	"github.com/crisp-cri/crisp/server/selinux"
)

// seLinux returns the SELinux policy that labels pods; nil if SELinux is off, in the
// configuration or on the host.
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

// labelImages labels the directory of images, and the files already in it, as files
// that containers may run; files unpacked later inherit the label. Mounts show the
// pod's label whatever the files have, but mprotect(2), which the dynamic loader
// calls, is checked against the file below overlayfs.
func labelImages(ctx context.Context, p *selinux.Policy, dir string, log *slog.Logger) {
	label := p.ReadOnly()
	if label == "" {
		return
	}
	if err := selinux.Relabel(ctx, dir, label, ctx.Err); err != nil {
		log.Warn("programs that need shared libraries may not start in containers", "err", err)
	}
}

// checkSELinux reports whether pods will be labelled.
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
