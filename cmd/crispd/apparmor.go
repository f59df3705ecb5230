package main

import (
	"context"
	"log/slog"

	"github.com/crisp-cri/crisp/config"
	"github.com/crisp-cri/crisp/internal/apparmor"
	"github.com/crisp-cri/crisp/internal/kernel"
)

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
