package main

import (
	"context"
	"log/slog"

	"github.com/crisp-cri/crisp/config"
	"github.com/crisp-cri/crisp/internal/apparmor"
	"github.com/crisp-cri/crisp/internal/kernel"
	"github.com/crisp-cri/crisp/server/selinux"
)

// seLinux returns the SELinux policy that labels pods; nil if SELinux is off, in the
// configuration or on the host.
func seLinux(c *config.Config, log *slog.Logger) *selinux.Policy {
	if !c.SELinux || kernel.Bare() {
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

// ownProfile returns the name of this crispd's AppArmor profile. Instances do not
// share it: each replaces its own, and wipes it.
func ownProfile(c *config.Config) string {
	if name := instance(c); name != "" {
		return apparmor.DefaultName + "-" + name
	}
	return apparmor.DefaultName
}

// appArmor ensures that the default profile is loaded, and returns the host's profiles and the
// name of the default one; nil and "" if AppArmor is off.
//
// crispd runs even if the profile cannot be loaded: it then refuses pods that require
// RuntimeDefault, and does not confine the others.
func appArmor(ctx context.Context, c *config.Config, host kernel.Features, log *slog.Logger) (*apparmor.Profiles, string) {
	if !host.AppArmor {
		return nil, ""
	}
	p := apparmor.New(ownProfile(c))
	if c.AppArmorProfile != "" {
		if err := p.Check(ctx, c.AppArmorProfile); err != nil {
			log.Warn("default AppArmor profile cannot be used", "err", err)
		}
		return p, c.AppArmorProfile
	}
	if err := p.Load(ctx); err != nil {
		log.Warn("default AppArmor profile not loaded; containers are not confined by it", "err", err)
		return p, ""
	}
	return p, ownProfile(c)
}

// checkAppArmor reports whether containers will be confined.
func checkAppArmor(c *config.Config, host kernel.Features) []finding {
	list := []finding{{"AppArmor", host.AppArmor, "containers are not confined by AppArmor; Localhost profiles are refused", false}}
	switch {
	case !host.AppArmor:
	case c.AppArmorProfile == "":
		parser := apparmor.Parser()
		list = append(list, finding{"AppArmor profile " + ownProfile(c) + ", loaded by " + parser, parser != "",
			"apparmor_parser is not installed: containers are not confined, and those that ask for RuntimeDefault refused", false})
	default:
		err := apparmor.New(ownProfile(c)).Check(context.Background(), c.AppArmorProfile)
		f := finding{"AppArmor profile " + c.AppArmorProfile, err == nil, "", false}
		if err != nil {
			f.follows = "containers without a profile of their own cannot be made: " + err.Error()
		}
		list = append(list, f)
	}
	return list
}
