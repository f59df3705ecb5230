package manifest

import (
	"fmt"
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
)

// container checks one container. names are the containers before it and ports the host
// ports that the pod has already taken, each with its field.
func (v *validator) container(spec *v1.PodSpec, c *v1.Container, field string, names, ports map[string]string) {
	if other, taken := names[c.Name]; taken && c.Name != "" {
		v.report(field+".name", "%q is the name of %s too", c.Name, other)
	} else {
		v.required(field+".name", c.Name, validation.IsDNS1123Label)
	}
	names[c.Name] = field
	if c.Image == "" {
		v.report(field+".image", "is missing")
	} else if strings.TrimSpace(c.Image) != c.Image {
		v.report(field+".image", "%q has blanks around it", c.Image)
	}
	oneOf(v, field+".imagePullPolicy", c.ImagePullPolicy, v1.PullAlways, v1.PullIfNotPresent, v1.PullNever)
	if c.StdinOnce && !c.Stdin {
		v.report(field+".stdinOnce", "needs stdin")
	}
	v.ports(spec, c, field, ports)
	v.env(spec, c, field)
	v.mounts(spec, c, field)
	v.resources(c, field)
	v.handlers(c, field, strings.HasPrefix(field, "spec.initContainers"))
	v.stopSignal(spec, c, field)
	if c.SecurityContext != nil {
		v.security(c.SecurityContext, field+".securityContext")
	}
}

func (v *validator) ports(spec *v1.PodSpec, c *v1.Container, field string, taken map[string]string) {
	names := map[string]bool{}
	for i, p := range c.Ports {
		field := fmt.Sprintf("%s.ports[%d]", field, i)
		if p.Name != "" {
			v.valid(field+".name", p.Name, validation.IsValidPortName(p.Name))
			if names[p.Name] {
				v.report(field+".name", "%q is the name of two ports", p.Name)
			}
			names[p.Name] = true
		}
		if p.ContainerPort < 1 || p.ContainerPort > 65535 {
			v.report(field+".containerPort", "%d is not between 1 and 65535", p.ContainerPort)
		}
		if p.HostPort < 0 || p.HostPort > 65535 {
			v.report(field+".hostPort", "%d is not between 1 and 65535", p.HostPort)
		}
		oneOf(v, field+".protocol", p.Protocol, v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP)
		if p.HostIP != "" {
			v.address(field+".hostIP", p.HostIP)
		}
		if spec.HostNetwork && p.HostPort != p.ContainerPort {
			v.report(field+".hostPort", "%d differs from containerPort %d, which hostNetwork does not allow", p.HostPort, p.ContainerPort)
		}
		if p.HostPort > 0 {
			key := fmt.Sprintf("%s %s:%d", p.Protocol, p.HostIP, p.HostPort)
			if other, ok := taken[key]; ok {
				v.report(field+".hostPort", "%d is taken by %s", p.HostPort, other)
			}
			taken[key] = field
		}
	}
}

func (v *validator) mounts(spec *v1.PodSpec, c *v1.Container, field string) {
	paths := map[string]bool{}
	for i, m := range c.VolumeMounts {
		field := fmt.Sprintf("%s.volumeMounts[%d]", field, i)
		if volumeOf(spec, m.Name) == nil {
			v.report(field+".name", "the pod has no volume %q", m.Name)
		}
		switch clean := path.Clean(m.MountPath); {
		case m.MountPath == "":
			v.report(field+".mountPath", "is missing")
		case paths[clean]:
			v.report(field+".mountPath", "%q is mounted twice", m.MountPath)
		default:
			paths[clean] = true
		}
		v.subPath(&m, field)
		if m.RecursiveReadOnly != nil {
			v.recursiveReadOnly(&m, field)
		}
		propagation := ptr.Deref(m.MountPropagation, "")
		oneOf(v, field+".mountPropagation", propagation, v1.MountPropagationNone, v1.MountPropagationHostToContainer, v1.MountPropagationBidirectional)
		if propagation == v1.MountPropagationBidirectional && !(c.SecurityContext != nil && ptr.Deref(c.SecurityContext.Privileged, false)) {
			v.report(field+".mountPropagation", "Bidirectional needs a privileged container")
		}
	}
}

// volumeOf returns the pod's volume of this name, or nil.
func volumeOf(spec *v1.PodSpec, name string) *v1.Volume {
	if i := slices.IndexFunc(spec.Volumes, func(vol v1.Volume) bool { return vol.Name == name }); i >= 0 {
		return &spec.Volumes[i]
	}
	return nil
}

// IsHugePages reports whether a resource is huge pages of any size.
func IsHugePages(name v1.ResourceName) bool {
	return strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix)
}

func (v *validator) resources(c *v1.Container, field string) {
	field += ".resources"
	for _, list := range []struct {
		name string
		of   v1.ResourceList
	}{{"limits", c.Resources.Limits}, {"requests", c.Resources.Requests}} {
		for name, q := range list.of {
			field := fmt.Sprintf("%s.%s[%s]", field, list.name, name)
			switch {
			case q.Sign() < 0:
				v.report(field, "%s is negative", q.String())
			case name == v1.ResourceCPU || name == v1.ResourceMemory || name == v1.ResourceEphemeralStorage || IsHugePages(name):
			default:
				v.report(field, "this node has no such resource")
			}
		}
	}
	for name, request := range c.Resources.Requests {
		if limit, ok := c.Resources.Limits[name]; ok && request.Cmp(limit) > 0 {
			v.report(fmt.Sprintf("%s.requests[%s]", field, name), "%s is more than the limit %s", request.String(), limit.String())
		}
	}
}

func (v *validator) security(s *v1.SecurityContext, field string) {
	v.user(field, s.RunAsUser, s.RunAsGroup, s.SeccompProfile)
	oneOf(v, field+".procMount", ptr.Deref(s.ProcMount, ""), v1.DefaultProcMount, v1.UnmaskedProcMount)
	if ptr.Deref(s.AllowPrivilegeEscalation, true) {
		return
	}
	if ptr.Deref(s.Privileged, false) {
		v.report(field+".allowPrivilegeEscalation", "cannot be false for a privileged container")
	}
	if s.Capabilities != nil && (slices.Contains(s.Capabilities.Add, "SYS_ADMIN") || slices.Contains(s.Capabilities.Add, "CAP_SYS_ADMIN")) {
		v.report(field+".allowPrivilegeEscalation", "cannot be false with the capability SYS_ADMIN")
	}
}
