package agent

import (
	"context"
	"fmt"

	"github.com/crisp-cri/crisp/agent/admit"
	"github.com/crisp-cri/crisp/agent/cgroup"
	"github.com/crisp-cri/crisp/agent/crix"
	"github.com/crisp-cri/crisp/agent/event"
	"github.com/crisp-cri/crisp/agent/podspec"
	"github.com/crisp-cri/crisp/agent/status"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// openCgroups makes the cgroups above those of pods. Without them pods run all
// the same, where the runtime puts them.
func (c *care) openCgroups(ctx context.Context) {
	driver := "cgroupfs"
	if resp, err := c.runtime.RuntimeConfig(ctx); err == nil && resp.GetLinux().GetCgroupDriver() == cri.CgroupDriver_SYSTEMD {
		driver = "systemd"
	}
	c.cgroupDriver.Store(&driver)
	if c.Care.NoPodCgroups {
		return
	}
	capacity := c.node.Node().Status.Capacity.DeepCopy()
	all := admit.Allocatable(capacity, c.Care.reserved())
	tree, err := cgroup.Open(c.Care.CgroupRoot, driver == "systemd", cgroup.Limits{Shares: cgroup.Shares(all.Cpu().MilliValue()), Memory: all.Memory().Value()})
	if err != nil {
		c.Log.WarnContext(ctx, "pods have no cgroups of their own", "err", err)
		c.events.Event(event.Node(c.NodeName), v1.EventTypeWarning, "CgroupsUnavailable", err.Error())
		return
	}
	c.cgroups = tree
}

// prepare is crix.Options.Prepare.
func (c *care) prepare(_ context.Context, pod *v1.Pod) error {
	if err := checkAppArmor(pod); err != nil {
		return err
	}
	if c.cgroups == nil {
		return nil
	}
	if err := c.limit(pod); err != nil {
		return crix.Reasoned("FailedCreatePodContainer", err)
	}
	return nil
}

// limit gives the pod's cgroup the values of the kubelet.
func (c *care) limit(pod *v1.Pod) error {
	requests, limits := c.driver.Requests(pod), c.driver.Limits(pod)
	l := cgroup.Limits{Shares: cgroup.Shares(0), Pids: c.Care.PodPIDs}
	class := status.QOS(pod)
	if class != v1.PodQOSBestEffort {
		l.Shares = cgroup.Shares(requests.Cpu().MilliValue())
		if class == v1.PodQOSGuaranteed || podspec.Limited(pod, v1.ResourceCPU) {
			if !c.NoCPUQuota {
				l.Period = cgroup.DefaultPeriod
				l.Quota = cgroup.Quota(limits.Cpu().MilliValue(), cgroup.DefaultPeriod)
			}
		}
		if class == v1.PodQOSGuaranteed || podspec.Limited(pod, v1.ResourceMemory) {
			l.Memory = limits.Memory().Value()
		}
	}
	if err := c.weigh(); err != nil {
		return err
	}
	if err := c.cgroups.Make(string(pod.UID), class, l); err != nil {
		return err
	}
	return c.cgroups.LimitHugePages(string(pod.UID), class, cgroup.HugePages(requests))
}

// weigh has the burstable pods weigh together what they ask for together.
func (c *care) weigh() error {
	milli := int64(0)
	for _, pod := range c.active(c.allocated()) {
		if status.QOS(pod) == v1.PodQOSBurstable {
			requests := c.driver.Requests(pod)
			milli += requests.Cpu().MilliValue()
		}
	}
	return c.cgroups.Weigh(milli)
}

// release is crix.Options.Release.
func (c *care) release(uid string) error {
	if c.cgroups != nil {
		if err := c.cgroups.Remove(uid); err != nil {
			return err
		}
	}
	return c.ids.Free(uid)
}

// userNS is crix.Options.UserNS.
func (c *care) userNS(pod *v1.Pod, handler string) (*cri.UserNamespace, error) {
	if pod.Spec.HostUsers == nil || *pod.Spec.HostUsers {
		return &cri.UserNamespace{Mode: cri.NamespaceMode_NODE}, nil
	}
	if f := c.driver.Features(handler); f != nil && !f.UserNamespaces {
		return nil, fmt.Errorf("the runtime's handler %q has no user namespaces", handler)
	}
	return c.ids.Of(string(pod.UID), c.driver.UserIDs)
}
