package spec

import (
	"strings"

	"github.com/crisp-cri/crisp/internal/fault"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// appArmor returns the profile that confines the container, "" = none. The new field takes
// precedence over the deprecated string. RuntimeDefault, or no profile, means the node's default
// profile. A host without AppArmor confines no container, as CRI allows; but it refuses a
// profile requested by name. RuntimeDefault is refused where the kernel could confine the
// container but our profile is missing.
func appArmor(sc *cri.LinuxContainerSecurityContext, h Host) (string, error) {
	if sc.GetPrivileged() {
		return "", nil
	}
	kind, ref, asked := cri.SecurityProfile_RuntimeDefault, "", true
	switch p, old := sc.GetApparmor(), sc.GetApparmorProfile(); {
	case p != nil:
		kind, ref = p.ProfileType, p.LocalhostRef
	case old == "":
		asked = false
	case old == "runtime/default":
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
		if h.AppArmor && h.AppArmorDefault == "" && asked {
			return "", fault.Unavailable.Errorf("the default AppArmor profile could not be loaded: see crispd check")
		}
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
