package manifest

import (
	"path"
	"regexp"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

func (v *validator) security(field string, s *v1.SecurityContext) {
	if ptr.Deref(s.AllowPrivilegeEscalation, true) {
		return
	}
	if ptr.Deref(s.Privileged, false) {
		v.report(field+".allowPrivilegeEscalation", "cannot be false for a privileged container")
	}
	// Kubernetes rejects only the name with the prefix here, and manifests rely on that.
	if s.Capabilities != nil && slices.Contains(s.Capabilities.Add, "CAP_SYS_ADMIN") {
		v.report(field+".allowPrivilegeEscalation", "cannot be false with the capability CAP_SYS_ADMIN")
	}
}

func (v *validator) seccomp(field string, p *v1.SeccompProfile) {
	local := p.LocalhostProfile != nil
	switch {
	case p.Type == "":
		v.report(field+".type", "is missing")
	case local != (p.Type == v1.SeccompProfileTypeLocalhost):
		v.report(field+".localhostProfile", "belongs to the type Localhost: set both or neither")
	case local && *p.LocalhostProfile == "":
		v.report(field+".localhostProfile", "is missing")
	case local && (path.IsAbs(*p.LocalhostProfile) || hasDotDot(*p.LocalhostProfile)):
		v.report(field+".localhostProfile", "%q must stay below the agent's seccomp directory", *p.LocalhostProfile)
	}
}

// longestProfile is the maximum length of an AppArmor profile's name in bytes: PATH_MAX without the
// final NUL.
const longestProfile = 4095

func (v *validator) appArmor(field string, p *v1.AppArmorProfile) {
	profile := ptr.Deref(p.LocalhostProfile, "")
	switch {
	case p.Type == "":
		v.report(field+".type", "is missing")
	case (p.LocalhostProfile != nil) != (p.Type == v1.AppArmorProfileTypeLocalhost):
		v.report(field+".localhostProfile", "belongs to the type Localhost: set both or neither")
	case p.LocalhostProfile == nil:
	case profile == "" || strings.TrimSpace(profile) != profile:
		v.report(field+".localhostProfile", "%q is not the name of a profile", profile)
	case len(profile) > longestProfile:
		v.report(field+".localhostProfile", "has more than %d characters", longestProfile)
	}
}

// sysctlName matches the names that sysctl(8) accepts, with either separator.
var sysctlName = regexp.MustCompile(`^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$`)

// podSecurity checks the sysctls of a pod. It reports duplicates, of which one would be lost.
func (v *validator) podSecurity(field string, s *v1.PodSecurityContext) {
	seen := map[string]bool{}
	for i, c := range s.Sysctls {
		at := field + index(".sysctls", i) + ".name"
		switch {
		case len(c.Name) > 253 || !sysctlName.MatchString(c.Name):
			v.report(at, "%q is not a sysctl", c.Name)
		case seen[c.Name]:
			v.report(at, "%s is set twice", c.Name)
		}
		seen[c.Name] = true
	}
}
