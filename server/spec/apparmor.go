package spec

import (
	"strings"

	"github.com/crisp-cri/crisp/internal/fault"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// appArmor is the profile to confine the container with, "" = none. The new
// field wins over the deprecated string. RuntimeDefault, and nothing asked for,
// are the node's default profile if it has one; a profile of the node's own
// choice (Localhost) that cannot be applied is an error.
func appArmor(sc *cri.LinuxContainerSecurityContext, h Host) (string, error) {
	if sc.GetPrivileged() {
		return "", nil
	}
	kind, ref := cri.SecurityProfile_RuntimeDefault, ""
	switch p, old := sc.GetApparmor(), sc.GetApparmorProfile(); {
	case p != nil:
		kind, ref = p.ProfileType, p.LocalhostRef
	case old == "" || old == "runtime/default":
	case old == "unconfined":
		kind = cri.SecurityProfile_Unconfined
	case strings.HasPrefix(old, "localhost/"):
		kind, ref = cri.SecurityProfile_Localhost, strings.TrimPrefix(old, "localhost/")
	default:
		return "", fault.Invalid.Errorf("AppArmor profile %q is neither \"runtime/default\", \"unconfined\" nor \"localhost/…\"", old)
	}

	switch kind {
	case cri.SecurityProfile_Unconfined:
		if h.AppArmor {
			return "unconfined", nil
		}
		return "", nil
	case cri.SecurityProfile_RuntimeDefault:
		if h.AppArmor {
			return h.AppArmorDefault, nil
		}
		return "", nil
	case cri.SecurityProfile_Localhost:
		ref = strings.TrimPrefix(ref, "localhost/")
		if ref == "" {
			return "", fault.Invalid.Errorf("AppArmor profile of type Localhost has no name")
		}
		if !h.AppArmor {
			return "", fault.Invalid.Errorf("AppArmor profile %q: AppArmor is not enabled on this host", ref)
		}
		return ref, nil
	}
	return "", fault.Invalid.Errorf("AppArmor profile type %d is not known", kind)
}
