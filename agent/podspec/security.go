package podspec

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"

	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"
)

// The paths of /proc and /sys that containers cannot see or write, unless their procMount
// is Unmasked: the kubelet's, in its order. In CRI an empty list means no paths, so these are
// always sent; the runtime ignores them for privileged containers.
var (
	maskedPaths = []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
	}
	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

func privileged(c *v1.Container) bool {
	return c.SecurityContext != nil && ptr.Deref(c.SecurityContext.Privileged, false)
}

// securityContext overlays the container's security context on the pod's. If neither names a
// user, the image's is used.
func (in *Input) securityContext(c *v1.Container, image *cri.Image, ns *cri.NamespaceOption) (*cri.LinuxContainerSecurityContext, error) {
	of, above := contexts(in.Pod, c)
	out := &cri.LinuxContainerSecurityContext{
		Privileged:       privileged(c),
		NamespaceOptions: ns,
		RunAsUser:        int64Value(cmp.Or(of.RunAsUser, above.RunAsUser)),
		RunAsGroup:       int64Value(cmp.Or(of.RunAsGroup, above.RunAsGroup)),
		ReadonlyRootfs:   ptr.Deref(of.ReadOnlyRootFilesystem, false),
		NoNewPrivs:       !ptr.Deref(of.AllowPrivilegeEscalation, true),
		Seccomp:          in.Node.seccomp(cmp.Or(of.SeccompProfile, above.SeccompProfile)),
		SelinuxOptions:   selinux(cmp.Or(of.SELinuxOptions, above.SELinuxOptions)),
	}
	if out.RunAsUser == nil {
		out.RunAsUser, out.RunAsUsername = imageUser(image)
	}
	//lint:ignore SA1019 the kubelet sets both fields, for runtimes that know only the old one
	out.Apparmor, out.ApparmorProfile = appArmor(cmp.Or(of.AppArmorProfile, above.AppArmorProfile))
	var err error
	if out.SupplementalGroups, out.SupplementalGroupsPolicy, err = groups(above); err != nil {
		return nil, err
	}
	if of.Capabilities != nil {
		out.Capabilities = &cri.Capability{
			AddCapabilities:  capabilities(of.Capabilities.Add),
			DropCapabilities: capabilities(of.Capabilities.Drop),
		}
	}
	if ptr.Deref(of.ProcMount, v1.DefaultProcMount) != v1.UnmaskedProcMount {
		out.MaskedPaths = slices.Concat(maskedPaths, in.Node.Kernel.Throttles)
		out.ReadonlyPaths = slices.Clone(readonlyPaths)
	}
	return out, nil
}

// contexts returns the security contexts of a container and of its pod, never nil.
func contexts(pod *v1.Pod, c *v1.Container) (*v1.SecurityContext, *v1.PodSecurityContext) {
	return cmp.Or(c.SecurityContext, &v1.SecurityContext{}), cmp.Or(pod.Spec.SecurityContext, &v1.PodSecurityContext{})
}

// imageUser returns the user of an image: an ID, or a name whose ID only the image has. The
// default is root.
func imageUser(image *cri.Image) (*cri.Int64Value, string) {
	switch {
	case image.GetUid() != nil:
		return &cri.Int64Value{Value: image.GetUid().GetValue()}, ""
	case image.GetUsername() != "":
		return nil, image.GetUsername()
	}
	return &cri.Int64Value{}, ""
}

func groups(of *v1.PodSecurityContext) ([]int64, cri.SupplementalGroupsPolicy, error) {
	var list []int64
	if of.FSGroup != nil {
		list = append(list, *of.FSGroup)
	}
	list = append(list, of.SupplementalGroups...)
	if of.SupplementalGroupsPolicy == nil {
		return list, 0, nil
	}
	policy, ok := cri.SupplementalGroupsPolicy_value[string(*of.SupplementalGroupsPolicy)]
	if !ok {
		return nil, 0, fmt.Errorf("unsupported supplementalGroupsPolicy: %s", *of.SupplementalGroupsPolicy)
	}
	return list, cri.SupplementalGroupsPolicy(policy), nil
}

func capabilities(list []v1.Capability) []string {
	out := make([]string, len(list))
	for i, c := range list {
		out[i] = string(c)
	}
	return out
}

func selinux(o *v1.SELinuxOptions) *cri.SELinuxOption {
	if o == nil {
		return nil
	}
	return &cri.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}

// appArmor returns the profile, and its name for CRI's deprecated apparmor_profile.
func appArmor(p *v1.AppArmorProfile) (*cri.SecurityProfile, string) {
	switch {
	case p == nil:
		return nil, ""
	case p.Type == v1.AppArmorProfileTypeRuntimeDefault:
		return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}, v1.DeprecatedAppArmorBetaProfileRuntimeDefault
	case p.Type == v1.AppArmorProfileTypeLocalhost && p.LocalhostProfile != nil:
		return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost, LocalhostRef: *p.LocalhostProfile},
			v1.DeprecatedAppArmorBetaProfileNamePrefix + *p.LocalhostProfile
	}
	return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined}, v1.DeprecatedAppArmorBetaProfileNameUnconfined
}

func (n *Node) seccomp(p *v1.SeccompProfile) *cri.SecurityProfile {
	switch {
	case p == nil && n.SeccompDefault, p != nil && p.Type == v1.SeccompProfileTypeRuntimeDefault:
		return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}
	case p != nil && p.Type == v1.SeccompProfileTypeLocalhost && p.LocalhostProfile != nil:
		return &cri.SecurityProfile{
			ProfileType:  cri.SecurityProfile_Localhost,
			LocalhostRef: filepath.Join(n.SeccompDir, *p.LocalhostProfile),
		}
	}
	return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined}
}

// verifyNonRoot enforces runAsNonRoot. The user must be an ID: only the image can resolve a
// name.
func verifyNonRoot(pod *v1.Pod, c *v1.Container, image *cri.Image) error {
	of, above := contexts(pod, c)
	if !ptr.Deref(cmp.Or(of.RunAsNonRoot, above.RunAsNonRoot), false) {
		return nil
	}
	if uid := cmp.Or(of.RunAsUser, above.RunAsUser); uid != nil {
		if *uid == 0 {
			return fmt.Errorf("container %s: runAsNonRoot is true and runAsUser is 0", c.Name)
		}
		return nil
	}
	switch uid, name := imageUser(image); {
	case uid != nil && uid.Value != 0:
		return nil
	case name != "":
		return fmt.Errorf("container %s: runAsNonRoot is true and image %s names the user %q: set runAsUser to a number", c.Name, c.Image, name)
	}
	return fmt.Errorf("container %s: runAsNonRoot is true and image %s runs as root", c.Name, c.Image)
}

func int64Value(v *int64) *cri.Int64Value {
	if v == nil {
		return nil
	}
	return &cri.Int64Value{Value: *v}
}
