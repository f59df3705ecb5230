package server

import (
	"context"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/crisp-cri/crisp/internal/fault"
)

// A Confiner knows the AppArmor profiles of this host.
type Confiner interface {
	// Check returns nil if a container can be confined by the profile, and fault.Invalid if no
	// profile of that name is loaded.
	Check(ctx context.Context, profile string) error
}

// checkProfile refuses a container whose AppArmor profile is not loaded, before the container is
// created: its start would fail with a bare kernel error.
func (s *Server) checkProfile(ctx context.Context, built *specs.Spec) error {
	profile := built.Process.ApparmorProfile
	switch {
	case profile == "":
		return nil
	case s.o.AppArmor == nil:
		return fault.Invalid.Errorf("AppArmor profile %q: AppArmor is not enabled on this host", profile)
	}
	return s.o.AppArmor.Check(ctx, profile)
}
