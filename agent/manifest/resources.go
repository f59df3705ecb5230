package manifest

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helpers "k8s.io/component-helpers/resource"
)

func IsHugePages(name v1.ResourceName) bool {
	return strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix)
}

func (v *validator) resources(field string, r *v1.ResourceRequirements) {
	others := []v1.ResourceName{v1.ResourceEphemeralStorage}
	for _, list := range []v1.ResourceList{r.Limits, r.Requests} {
		for name := range list {
			if isDevice(name) {
				others = append(others, name)
			}
		}
	}
	v.amounts(field+".limits", r.Limits, others...)
	v.amounts(field+".requests", r.Requests, others...)
	v.devices(field, r)
	v.fits(field, r)
}

// fits reports requests that exceed their limits. Huge pages cannot be overcommitted: their request
// must equal the limit, and they need CPU or memory beside them.
func (v *validator) fits(field string, r *v1.ResourceRequirements) {
	for _, name := range slices.Sorted(maps.Keys(r.Requests)) {
		at, request := fmt.Sprintf("%s.requests[%s]", field, name), r.Requests[name]
		limit, limited := r.Limits[name]
		switch {
		case IsHugePages(name) && (!limited || request.Cmp(limit) != 0):
			v.report(at, "%s must be the limit too: huge pages cannot be overcommitted", request.String())
		case limited && request.Cmp(limit) > 0 && !isDevice(name):
			v.report(at, "%s is more than the limit %s", request.String(), limit.String())
		}
	}
	v.besideHugePages(field, r.Limits, r.Requests)
}

// besideHugePages reports huge pages without CPU or memory.
func (v *validator) besideHugePages(field string, lists ...v1.ResourceList) {
	pages := v1.ResourceName("")
	for _, list := range lists {
		for _, name := range slices.Sorted(maps.Keys(list)) {
			switch {
			case name == v1.ResourceCPU || name == v1.ResourceMemory:
				return
			case IsHugePages(name):
				pages = name
			}
		}
	}
	if pages != "" {
		v.report(field, "%s needs cpu or memory beside it", pages)
	}
}

// amounts checks quantities of CPU, memory, huge pages and the resources in others. A node has no
// other resources.
func (v *validator) amounts(field string, list v1.ResourceList, others ...v1.ResourceName) {
	for _, name := range slices.Sorted(maps.Keys(list)) {
		at, q := fmt.Sprintf("%s[%s]", field, name), list[name]
		if q.Sign() < 0 {
			v.insist(at, "%s is negative", q.String())
		}
		switch {
		case IsHugePages(name):
			v.hugePages(at, name, q)
		case name != v1.ResourceCPU && name != v1.ResourceMemory && !slices.Contains(others, name):
			v.report(at, "this node has no such resource")
		}
	}
}

// hugePages checks that an amount of huge pages is a multiple of the page size in the resource's
// name.
func (v *validator) hugePages(field string, name v1.ResourceName, q resource.Quantity) {
	size, err := resource.ParseQuantity(strings.TrimPrefix(string(name), v1.ResourceHugePagesPrefix))
	switch {
	case err != nil || size.Sign() <= 0:
		v.report(field, "%q names no size of huge pages", name)
	case q.Value()%size.Value() != 0 || q.MilliValue()%1000 != 0:
		v.report(field, "%s is not a number of pages of %s", q.String(), size.String())
	}
}

// defaultPodResources completes the pod-level resources if some are set: the limit of huge pages is
// that of the containers, and a missing request is that of the containers or, if none has one, the
// limit.
func defaultPodResources(spec *v1.PodSpec) {
	r := spec.Resources
	if r == nil || len(r.Limits)+len(r.Requests) == 0 {
		return
	}
	pod := &v1.Pod{Spec: *spec}
	for name, limit := range helpers.AggregateContainerLimits(pod, helpers.PodResourcesOptions{}) {
		if _, requested := r.Requests[name]; IsHugePages(name) && !requested {
			r.Limits = withDefault(r.Limits, name, limit)
		}
	}
	if len(r.Limits) == 0 {
		return
	}
	for name, request := range helpers.AggregateContainerRequests(pod, helpers.PodResourcesOptions{}) {
		if name == v1.ResourceCPU || name == v1.ResourceMemory {
			r.Requests = withDefault(r.Requests, name, request)
		}
	}
	for name, limit := range r.Limits {
		r.Requests = withDefault(r.Requests, name, limit)
	}
}

func withDefault(list v1.ResourceList, name v1.ResourceName, q resource.Quantity) v1.ResourceList {
	if list == nil {
		list = v1.ResourceList{}
	}
	if _, ok := list[name]; !ok {
		list[name] = q.DeepCopy()
	}
	return list
}

// podResources checks the overhead of a pod and its pod-level resources, which bound those of each
// container.
func (v *validator) podResources(field string, spec *v1.PodSpec) {
	v.amounts(field+".overhead", spec.Overhead, v1.ResourceEphemeralStorage)
	v.besideHugePages(field+".overhead", spec.Overhead)
	if spec.Resources == nil {
		return
	}
	at := field + ".resources"
	v.amounts(at+".limits", spec.Resources.Limits)
	v.amounts(at+".requests", spec.Resources.Requests)
	v.fits(at, spec.Resources)
	pod := &v1.Pod{Spec: *spec}
	asked := helpers.AggregateContainerRequests(pod, helpers.PodResourcesOptions{})
	for _, name := range slices.Sorted(maps.Keys(spec.Resources.Requests)) {
		v.bound(fmt.Sprintf("%s.requests[%s]", at, name), spec.Resources.Requests[name], asked[name])
	}
	all := helpers.AggregateContainerLimits(pod, helpers.PodResourcesOptions{})
	for _, name := range slices.Sorted(maps.Keys(spec.Resources.Limits)) {
		limit := spec.Resources.Limits[name]
		if IsHugePages(name) {
			v.bound(fmt.Sprintf("%s.limits[%s]", at, name), limit, all[name])
		}
		for i := range spec.Containers {
			own, limited := spec.Containers[i].Resources.Limits[name]
			if limited && own.Cmp(limit) > 0 {
				v.report(fmt.Sprintf("%s.containers[%d].resources.limits[%s]", field, i, name), "%s is more than the pod's limit %s", own.String(), limit.String())
			}
		}
	}
}

func (v *validator) bound(field string, of, containers resource.Quantity) {
	if containers.Cmp(of) > 0 {
		v.report(field, "%s is less than the %s of the containers", of.String(), containers.String())
	}
}
