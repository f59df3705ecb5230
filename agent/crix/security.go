package crix

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The paths of /proc and /sys that containers do not see or may not write,
// unless they are privileged or ask for an unmasked /proc. CRI: an empty list
// means none, so they are always sent. They are the kubelet's.
var (
	maskedPaths = []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/sys/devices/virtual/powercap", "/sys/firmware",
	}
	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

func privileged(c v1.Container) bool {
	return c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged
}

// securityContext merges the container's context over the pod's.
func (d *Driver) securityContext(pod *v1.Pod, c *v1.Container) *cri.LinuxContainerSecurityContext {
	of := c.SecurityContext
	if of == nil {
		of = &v1.SecurityContext{}
	}
	above := pod.Spec.SecurityContext
	out := &cri.LinuxContainerSecurityContext{
		Privileged:         privileged(*c),
		NamespaceOptions:   namespaces(pod),
		RunAsUser:          int64Value(either(of.RunAsUser, above.RunAsUser)),
		RunAsGroup:         int64Value(either(of.RunAsGroup, above.RunAsGroup)),
		SupplementalGroups: above.SupplementalGroups,
		ReadonlyRootfs:     of.ReadOnlyRootFilesystem != nil && *of.ReadOnlyRootFilesystem,
		NoNewPrivs:         of.AllowPrivilegeEscalation != nil && !*of.AllowPrivilegeEscalation,
		Seccomp:            d.seccomp(either(of.SeccompProfile, above.SeccompProfile), privileged(*c)),
	}
	if of.Capabilities != nil {
		out.Capabilities = &cri.Capability{
			AddCapabilities:  capabilities(of.Capabilities.Add),
			DropCapabilities: capabilities(of.Capabilities.Drop),
		}
	}
	if !privileged(*c) && (of.ProcMount == nil || *of.ProcMount == v1.DefaultProcMount) {
		out.MaskedPaths = slices.Clone(maskedPaths)
		out.ReadonlyPaths = slices.Clone(readonlyPaths)
	}
	return out
}

func either[T any](a, b *T) *T {
	if a != nil {
		return a
	}
	return b
}

func capabilities(list []v1.Capability) []string {
	out := make([]string, len(list))
	for i, c := range list {
		out[i] = strings.TrimPrefix(strings.ToUpper(string(c)), "CAP_")
	}
	return out
}

func (d *Driver) seccomp(p *v1.SeccompProfile, privileged bool) *cri.SecurityProfile {
	switch {
	case privileged:
		return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined}
	case p == nil && d.SeccompDefault, p != nil && p.Type == v1.SeccompProfileTypeRuntimeDefault:
		return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}
	case p != nil && p.Type == v1.SeccompProfileTypeLocalhost:
		return &cri.SecurityProfile{
			ProfileType:  cri.SecurityProfile_Localhost,
			LocalhostRef: filepath.Join(d.Root, "seccomp", *p.LocalhostProfile),
		}
	}
	return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined}
}

// verifyNonRoot keeps the promise of runAsNonRoot. Only a number can be judged:
// what a user name of the image means is known to the image alone.
func verifyNonRoot(pod *v1.Pod, c *v1.Container, image *cri.Image) error {
	of := c.SecurityContext
	if of == nil {
		of = &v1.SecurityContext{}
	}
	above := pod.Spec.SecurityContext
	if must := either(of.RunAsNonRoot, above.RunAsNonRoot); must == nil || !*must {
		return nil
	}
	if uid := either(of.RunAsUser, above.RunAsUser); uid != nil {
		if *uid == 0 {
			return fmt.Errorf("container %s: runAsNonRoot is true and runAsUser is 0", c.Name)
		}
		return nil
	}
	switch {
	case image.GetUid() != nil && image.GetUid().Value != 0:
		return nil
	case image.GetUid() == nil && image.GetUsername() != "":
		return fmt.Errorf("container %s: runAsNonRoot is true and image %s names the user %q: set runAsUser to a number", c.Name, c.Image, image.GetUsername())
	}
	return fmt.Errorf("container %s: runAsNonRoot is true and image %s runs as root", c.Name, c.Image)
}

func int64Value(v *int64) *cri.Int64Value {
	if v == nil {
		return nil
	}
	return &cri.Int64Value{Value: *v}
}
