package manifest

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
)

// A Device is a device that a container's limits ask for: a device node of this node, or devices
// that vendors describe in files (CDI).
type Device struct {
	Host, Container string // paths of the device node
	Permissions     string // some of "rwm"
	CDI             []string
}

// mostDevices bounds the devices that an amount stands for.
const mostDevices = 64

// nodeDevices are the prefixes of resources that are device nodes: crisp's, and podman's.
var nodeDevices = []string{"crisp.io/device=", "podman.io/device="}

// Devices returns the devices in a container's limits, by name.
func Devices(limits v1.ResourceList) []Device {
	var list []Device
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		if d, err := deviceOf(name, limits[name]); isDevice(name) && err == nil {
			list = append(list, d)
		}
	}
	return list
}

// OnlyDevices returns the limits that are devices. A running container keeps its own.
func OnlyDevices(limits v1.ResourceList) v1.ResourceList {
	limits = limits.DeepCopy()
	maps.DeleteFunc(limits, func(name v1.ResourceName, _ resource.Quantity) bool { return !isDevice(name) })
	return limits
}

// isDevice reports whether a resource has the name of a device: none of Kubernetes' own has a domain.
func isDevice(name v1.ResourceName) bool {
	domain, class, ok := strings.Cut(string(name), "/")
	return ok && domain != "" && class != "" && !strings.HasSuffix(domain, "kubernetes.io")
}

// deviceOf parses a resource. It is a device node, crisp.io/device=HOST[:CONTAINER][:PERMISSIONS],
// a device of CDI, VENDOR/CLASS=DEVICE, or as in vendors' documents VENDOR/CLASS, whose amount N
// stands for the devices 0 to N-1: crisp runs no device plugin that would choose others.
func deviceOf(name v1.ResourceName, q resource.Quantity) (Device, error) {
	amount := q.Value()
	if q.Cmp(*resource.NewQuantity(amount, resource.DecimalSI)) != 0 {
		return Device{}, fmt.Errorf("%s is not a whole number", q.String())
	}
	for _, prefix := range nodeDevices {
		if text, ok := strings.CutPrefix(string(name), prefix); ok {
			return nodeDevice(text, amount)
		}
	}
	kind, device, named := strings.Cut(string(name), "=")
	if errs := validation.IsQualifiedName(kind); len(errs) > 0 {
		return Device{}, fmt.Errorf("%q: %s", kind, errs[0])
	}
	switch {
	case named && (amount != 1 || device == ""):
		return Device{}, fmt.Errorf("%s: want VENDOR/CLASS=DEVICE and the amount 1", q.String())
	case named:
		return Device{CDI: []string{string(name)}}, nil
	case amount > mostDevices:
		return Device{}, fmt.Errorf("%d are more than %d devices", amount, mostDevices)
	}
	var d Device
	for i := range amount {
		d.CDI = append(d.CDI, fmt.Sprintf("%s=%d", kind, i))
	}
	return d, nil
}

func nodeDevice(text string, amount int64) (Device, error) {
	words := strings.Split(text, ":")
	d := Device{Host: words[0], Container: words[0], Permissions: "rwm"}
	rest := words[1:]
	if len(rest) > 0 && strings.HasPrefix(rest[0], "/") {
		d.Container, rest = rest[0], rest[1:]
	}
	if len(rest) > 0 && rest[0] != "" && strings.Trim(rest[0], "rwm") == "" {
		d.Permissions, rest = rest[0], rest[1:]
	}
	if len(rest) > 0 || amount != 1 || !clean(d.Host) || !clean(d.Container) {
		return Device{}, fmt.Errorf("%q: want /dev/NAME[:/dev/NAME][:rwm] and the amount 1", text)
	}
	return d, nil
}

// clean reports whether a path is absolute and has no ".." and the like.
func clean(p string) bool { return path.IsAbs(p) && path.Clean(p) == p && p != "/" }

// devices checks the devices in a container's resources. There are as many of them as pods want: a
// request without its limit would have none.
func (v *validator) devices(field string, r *v1.ResourceRequirements) {
	for _, name := range slices.Sorted(maps.Keys(r.Limits)) {
		if isDevice(name) {
			if _, err := deviceOf(name, r.Limits[name]); err != nil {
				v.report(fmt.Sprintf("%s.limits[%s]", field, name), "%v", err)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Requests)) {
		limit, request := r.Limits[name], r.Requests[name]
		if isDevice(name) && limit.Cmp(request) != 0 {
			v.report(fmt.Sprintf("%s.requests[%s]", field, name), "%s must be the limit too", request.String())
		}
	}
}
