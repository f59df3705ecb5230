package agent

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/crisp-cri/crisp/agent/admit"
	"github.com/crisp-cri/crisp/agent/cgroup"
	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/idrange"
	"github.com/crisp-cri/crisp/agent/nodepods"
	"github.com/crisp-cri/crisp/agent/podspec"
	"github.com/crisp-cri/crisp/agent/status"
	v1 "k8s.io/api/core/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A containerManager gives pods what they need on this node besides files: a cgroup, and IDs of the
// node for their user namespaces. It is criruntime.ContainerManager.
type containerManager struct {
	config  NodeConfig
	noQuota bool // CPU limits are not enforced
	host    host
	pods    *nodepods.Pods
	ids     *idrange.Pool
	runtime internalapi.RuntimeService

	// The cgroups above those of pods, by open; none: pods run where the runtime puts
	// them.
	cgroups *cgroup.Tree
	driver  atomic.Pointer[string] // the runtime's cgroup driver, by the kubelet's name; nil until it is known
}

// open makes the cgroups above those of pods, as the runtime's cgroup driver wants them,
// before the first pod is given anything. Without them pods run all the same.
func (g *containerManager) open(ctx context.Context) (err error) {
	driver := "cgroupfs"
	if resp, err := g.runtime.RuntimeConfig(ctx); err == nil && resp.GetLinux().GetCgroupDriver() == cri.CgroupDriver_SYSTEMD {
		driver = "systemd"
	}
	g.driver.Store(&driver)
	if g.config.NoPodCgroups {
		return nil
	}
	all := admit.Allocatable(g.host.node.Node().Status.Capacity.DeepCopy(), g.config.reserved())
	g.cgroups, err = cgroup.Open(g.config.CgroupRoot, driver == "systemd", cgroup.Limits{Shares: cgroup.Shares(all.Cpu().MilliValue()), Memory: all.Memory().Value()})
	return err
}

// CgroupParent is as criruntime.ContainerManager says.
func (g *containerManager) CgroupParent(pod *v1.Pod) string {
	if g.cgroups == nil {
		return ""
	}
	return g.cgroups.Parent(string(pod.UID), status.QOS(pod))
}

// Resize is as criruntime.ContainerManager says.
func (g *containerManager) Resize(pod *v1.Pod) error {
	if g.cgroups == nil {
		return nil
	}
	return g.limit(pod)
}

// Sweep is as housekeeping.Cgroups says.
func (g *containerManager) Sweep(known map[string]bool) error {
	if g.cgroups == nil {
		return nil
	}
	return errors.Join(g.shareCPU(), g.cgroups.Sweep(func(uid string) bool { return known[uid] }))
}

// Prepare is as criruntime.ContainerManager says.
func (g *containerManager) Prepare(_ context.Context, pod *v1.Pod) error {
	if err := checkAppArmor(pod); err != nil {
		return err
	}
	if g.cgroups == nil {
		return nil
	}
	if err := g.limit(pod); err != nil {
		return criruntime.Reasoned("FailedCreatePodContainer", err)
	}
	return nil
}

// limit gives the pod's cgroup the values of the kubelet.
func (g *containerManager) limit(pod *v1.Pod) error {
	requests, limits := g.pods.Requests(pod), g.pods.Limits(pod)
	l := cgroup.Limits{Shares: cgroup.Shares(0), Pids: g.config.PodPIDs}
	class := status.QOS(pod)
	if class != v1.PodQOSBestEffort {
		l.Shares = cgroup.Shares(requests.Cpu().MilliValue())
		if class == v1.PodQOSGuaranteed || podspec.Limited(pod, v1.ResourceCPU) {
			if !g.noQuota {
				l.Period = cgroup.DefaultPeriod
				l.Quota = cgroup.Quota(limits.Cpu().MilliValue(), cgroup.DefaultPeriod)
			}
		}
		if class == v1.PodQOSGuaranteed || podspec.Limited(pod, v1.ResourceMemory) {
			l.Memory = limits.Memory().Value()
		}
	}
	if err := g.shareCPU(); err != nil {
		return err
	}
	if err := g.cgroups.Make(string(pod.UID), class, l); err != nil {
		return err
	}
	return g.cgroups.LimitHugePages(string(pod.UID), class, cgroup.HugePages(requests))
}

// shareCPU gives the burstable pods together the CPU shares that they request together.
func (g *containerManager) shareCPU() error {
	milli := int64(0)
	for _, pod := range g.pods.Active(g.pods.Allocated()) {
		if status.QOS(pod) == v1.PodQOSBurstable {
			requests := g.pods.Requests(pod)
			milli += requests.Cpu().MilliValue()
		}
	}
	return g.cgroups.Weigh(milli)
}

// Release is as criruntime.ContainerManager says.
func (g *containerManager) Release(uid string) error {
	if g.cgroups != nil {
		if err := g.cgroups.Remove(uid); err != nil {
			return err
		}
	}
	return g.ids.Free(uid)
}

// UserNamespace is as criruntime.ContainerManager says.
func (g *containerManager) UserNamespace(pod *v1.Pod, handler string) (*cri.UserNamespace, error) {
	if pod.Spec.HostUsers == nil || *pod.Spec.HostUsers {
		return &cri.UserNamespace{Mode: cri.NamespaceMode_NODE}, nil
	}
	if f := g.host.Features(handler); f != nil && !f.UserNamespaces {
		return nil, fmt.Errorf("the runtime's handler %q has no user namespaces", handler)
	}
	return g.ids.Of(string(pod.UID), func() ([]*cri.IDMapping, error) { return criruntime.UserIDs(g.runtime) })
}
