// Package containermanager gives pods what they need on this node besides files: a cgroup with
// the kubelet's limits, and host IDs for their user namespaces.
package containermanager

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/crisp-cri/crisp/agent/admit"
	"github.com/crisp-cri/crisp/agent/cgroup"
	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/evict"
	"github.com/crisp-cri/crisp/agent/idrange"
	"github.com/crisp-cri/crisp/agent/node"
	"github.com/crisp-cri/crisp/agent/nodepods"
	"github.com/crisp-cri/crisp/agent/podspec"
	"github.com/crisp-cri/crisp/agent/readiness"
	"github.com/crisp-cri/crisp/agent/status"
	v1 "k8s.io/api/core/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Options are the arguments of New.
type Options struct {
	NoPodCgroups bool            // leave the cgroups of pods to the runtime
	CgroupRoot   string          // cgroup above kubepods; "" is the root of the hierarchy
	PodPIDs      int64           // maximum number of processes of a pod; 0 is no limit
	NoCPUQuota   bool            // do not enforce CPU limits
	Reserved     v1.ResourceList // the node's resources that are not for pods

	Node      *node.State
	Readiness *readiness.Monitor // has the features of the runtime's handlers
	Pods      *nodepods.Pods
	IDs       *idrange.Pool
	Runtime   internalapi.RuntimeService
}

// A Manager implements criruntime.ContainerManager and housekeeping.Cgroups.
type Manager struct {
	o Options

	// cgroups is set by Open. Without it pods run where the runtime puts them.
	cgroups *cgroup.Tree
	driver  atomic.Pointer[string]
}

// New returns a Manager, which makes no cgroups before Open.
func New(o Options) *Manager { return &Manager{o: o} }

// CgroupDriver returns the runtime's cgroup driver, "systemd" or "cgroupfs"; "" before Open.
func (m *Manager) CgroupDriver() string {
	if driver := m.driver.Load(); driver != nil {
		return *driver
	}
	return ""
}

// Open makes the cgroups above those of pods, with the runtime's cgroup driver. It is called
// before the first pod is prepared. If it fails, the runtime places the pods' cgroups.
func (m *Manager) Open(ctx context.Context) (err error) {
	driver := "cgroupfs"
	if resp, err := m.o.Runtime.RuntimeConfig(ctx); err == nil && resp.GetLinux().GetCgroupDriver() == cri.CgroupDriver_SYSTEMD {
		driver = "systemd"
	}
	m.driver.Store(&driver)
	if m.o.NoPodCgroups {
		return nil
	}
	all := admit.Allocatable(m.o.Node.Node().Status.Capacity.DeepCopy(), m.o.Reserved)
	m.cgroups, err = cgroup.Open(m.o.CgroupRoot, driver == "systemd", cgroup.Limits{Shares: cgroup.Shares(all.Cpu().MilliValue()), Memory: all.Memory().Value()})
	return err
}

// CgroupParent implements criruntime.ContainerManager.
func (m *Manager) CgroupParent(pod *v1.Pod) string {
	if m.cgroups == nil {
		return ""
	}
	return m.cgroups.Parent(string(pod.UID), status.QOS(pod))
}

// Resize implements criruntime.ContainerManager.
func (m *Manager) Resize(pod *v1.Pod) error {
	if m.cgroups == nil {
		return nil
	}
	return m.limit(pod)
}

// Memory implements housekeeping.Cgroups.
func (m *Manager) Memory() (o evict.Observation, ok bool) {
	if m.cgroups == nil {
		return o, false
	}
	used, limit, err := m.cgroups.Memory()
	if err != nil {
		return o, false
	}
	return observe(used, limit)
}

// observe returns what is left of a cgroup's memory. A limit of 0 is that of a cgroup which is not
// there; without a limit v1 has 2^63 less a page, and v2 2^64-1.
func observe(used, limit uint64) (o evict.Observation, ok bool) {
	if limit == 0 || limit >= 1<<62 {
		return o, false
	}
	return evict.Observation{Available: int64(limit) - int64(used), Capacity: int64(limit)}, true
}

// Sweep implements housekeeping.Cgroups.
func (m *Manager) Sweep(known map[string]bool) error {
	if m.cgroups == nil {
		return nil
	}
	return errors.Join(m.shareCPU(), m.cgroups.Sweep(known))
}

// Prepare implements criruntime.ContainerManager.
func (m *Manager) Prepare(_ context.Context, pod *v1.Pod) error {
	if err := checkAppArmor(pod); err != nil {
		return err
	}
	if m.cgroups == nil {
		return nil
	}
	if err := m.limit(pod); err != nil {
		return criruntime.Reasoned("FailedCreatePodContainer", err)
	}
	return nil
}

// limit makes the pod's cgroup and sets the kubelet's limits.
func (m *Manager) limit(pod *v1.Pod) error {
	requests, limits := m.o.Pods.Requests(pod), m.o.Pods.Limits(pod)
	l := cgroup.Limits{Shares: cgroup.Shares(0), Pids: m.o.PodPIDs}
	class := status.QOS(pod)
	if class != v1.PodQOSBestEffort {
		l.Shares = cgroup.Shares(requests.Cpu().MilliValue())
		if class == v1.PodQOSGuaranteed || podspec.Limited(pod, v1.ResourceCPU) {
			if !m.o.NoCPUQuota {
				l.Period, l.Quota = cgroup.Period, cgroup.Quota(limits.Cpu().MilliValue())
			}
		}
		if class == v1.PodQOSGuaranteed || podspec.Limited(pod, v1.ResourceMemory) {
			l.Memory = limits.Memory().Value()
		}
	}
	if err := m.shareCPU(); err != nil {
		return err
	}
	if err := m.cgroups.Make(string(pod.UID), class, l); err != nil {
		return err
	}
	return m.cgroups.LimitHugePages(string(pod.UID), class, cgroup.HugePages(requests))
}

// shareCPU sets the CPU shares of all burstable pods together to the sum of their requests.
func (m *Manager) shareCPU() error {
	milli := int64(0)
	for _, pod := range m.o.Pods.Active(m.o.Pods.Allocated()) {
		if status.QOS(pod) == v1.PodQOSBurstable {
			requests := m.o.Pods.Requests(pod)
			milli += requests.Cpu().MilliValue()
		}
	}
	return m.cgroups.SetBurstableShares(milli)
}

// Release implements criruntime.ContainerManager.
func (m *Manager) Release(uid string) error {
	if m.cgroups != nil {
		if err := m.cgroups.Remove(uid); err != nil {
			return err
		}
	}
	return m.o.IDs.Free(uid)
}

// UserNamespace implements criruntime.ContainerManager.
func (m *Manager) UserNamespace(pod *v1.Pod, handler string) (*cri.UserNamespace, error) {
	if pod.Spec.HostUsers == nil || *pod.Spec.HostUsers {
		return &cri.UserNamespace{Mode: cri.NamespaceMode_NODE}, nil
	}
	if f := m.o.Readiness.HandlerFeatures(handler); f != nil && !f.UserNamespaces {
		return nil, fmt.Errorf("the runtime's handler %q has no user namespaces", handler)
	}
	return m.o.IDs.Of(string(pod.UID), func() ([]*cri.IDMapping, error) { return criruntime.UserIDs(m.o.Runtime) })
}
