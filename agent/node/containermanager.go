package node

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/podspec"
	"github.com/crisp-cri/crisp/agent/status"
	v1 "k8s.io/api/core/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ContainerManagerOptions configure a ContainerManager.
type ContainerManagerOptions struct {
	NoPodCgroups bool            // leave the cgroups of pods to the runtime
	CgroupRoot   string          // cgroup above kubepods; "" is the root of the hierarchy
	PodPIDs      int64           // maximum number of processes of a pod; 0 is no limit
	NoCPUQuota   bool            // do not enforce CPU limits
	Reserved     v1.ResourceList // the node's resources that are not for pods

	Node      *State
	Readiness *criruntime.Monitor // has the features of the runtime's handlers
	Pods      *Pods
	IDs       *IDPool
	Runtime   internalapi.RuntimeService
}

// A ContainerManager gives pods what they need on this node besides files: a cgroup with the kubelet's
// limits, and host IDs for their user namespaces. It implements criruntime.ContainerManager.
type ContainerManager struct {
	o ContainerManagerOptions

	// cgroups is set by Open. Without it pods run where the runtime puts them.
	cgroups *CgroupTree
	driver  atomic.Value // string
}

// NewContainerManager returns a ContainerManager, which makes no cgroups before Open.
func NewContainerManager(o ContainerManagerOptions) *ContainerManager { return &ContainerManager{o: o} }

// CgroupDriver returns the runtime's cgroup driver, "systemd" or "cgroupfs"; "" before Open.
func (m *ContainerManager) CgroupDriver() string {
	driver, _ := m.driver.Load().(string)
	return driver
}

// Open makes the cgroups above those of pods, with the runtime's cgroup driver. It is called
// before the first pod is prepared. If it fails, the runtime places the pods' cgroups.
func (m *ContainerManager) Open(ctx context.Context) (err error) {
	driver := "cgroupfs"
	if resp, err := m.o.Runtime.RuntimeConfig(ctx); err == nil && resp.GetLinux().GetCgroupDriver() == cri.CgroupDriver_SYSTEMD {
		driver = "systemd"
	}
	m.driver.Store(driver)
	if m.o.NoPodCgroups {
		return nil
	}
	all := Allocatable(m.o.Node.Node().Status.Capacity.DeepCopy(), m.o.Reserved)
	m.cgroups, err = OpenCgroups(m.o.CgroupRoot, driver == "systemd", CgroupLimits{Shares: podspec.CPUShares(all.Cpu().MilliValue()), Memory: all.Memory().Value()})
	return err
}

// CgroupParent implements criruntime.ContainerManager.
func (m *ContainerManager) CgroupParent(pod *v1.Pod) string {
	if m.cgroups == nil {
		return ""
	}
	return m.cgroups.Parent(string(pod.UID), status.QOS(pod))
}

// Resize implements criruntime.ContainerManager.
func (m *ContainerManager) Resize(pod *v1.Pod) error {
	if m.cgroups == nil {
		return nil
	}
	return m.limit(pod)
}

// Memory returns how much of the memory of all pods together is left; ok is false if that is not
// limited or not known.
func (m *ContainerManager) Memory() (o Observation, ok bool) {
	if m.cgroups == nil {
		return o, false
	}
	used, limit, err := m.cgroups.Memory()
	if err != nil {
		return o, false
	}
	return observe(used, limit)
}

// observe returns what is left of a cgroup's memory. A limit of 0 means no such cgroup; unlimited
// is 2^63 less a page on v1, and 2^64-1 on v2.
func observe(used, limit uint64) (o Observation, ok bool) {
	if limit == 0 || limit >= 1<<62 {
		return o, false
	}
	return Observation{Available: int64(limit) - int64(used), Capacity: int64(limit)}, true
}

// Sweep removes idle cgroups of all pods but the known ones, by UID.
func (m *ContainerManager) Sweep(known map[string]bool) error {
	if m.cgroups == nil {
		return nil
	}
	return errors.Join(m.shareCPU(), m.cgroups.Sweep(known))
}

// Prepare implements criruntime.ContainerManager.
func (m *ContainerManager) Prepare(_ context.Context, pod *v1.Pod) error {
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
func (m *ContainerManager) limit(pod *v1.Pod) error {
	requests, limits := m.o.Pods.Requests(pod), m.o.Pods.Limits(pod)
	l := CgroupLimits{Shares: podspec.CPUShares(0), Pids: m.o.PodPIDs, Pages: podspec.HugePages(requests)}
	class := status.QOS(pod)
	if class != v1.PodQOSBestEffort {
		l.Shares = podspec.CPUShares(requests.Cpu().MilliValue())
		if class == v1.PodQOSGuaranteed || podspec.Limited(pod, v1.ResourceCPU) {
			if !m.o.NoCPUQuota {
				l.Period, l.Quota = podspec.CPUPeriod, podspec.CPUQuota(limits.Cpu().MilliValue())
			}
		}
		if class == v1.PodQOSGuaranteed || podspec.Limited(pod, v1.ResourceMemory) {
			l.Memory = limits.Memory().Value()
		}
	}
	if err := m.shareCPU(); err != nil {
		return err
	}
	return m.cgroups.Make(string(pod.UID), class, l)
}

// shareCPU sets the CPU shares of all burstable pods together to the sum of their requests.
func (m *ContainerManager) shareCPU() error {
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
func (m *ContainerManager) Release(uid string) error {
	if m.cgroups != nil {
		if err := m.cgroups.Remove(uid); err != nil {
			return err
		}
	}
	return m.o.IDs.Free(uid)
}

// UserNamespace implements criruntime.ContainerManager.
func (m *ContainerManager) UserNamespace(pod *v1.Pod, handler string) (*cri.UserNamespace, error) {
	if pod.Spec.HostUsers == nil || *pod.Spec.HostUsers {
		return &cri.UserNamespace{Mode: cri.NamespaceMode_NODE}, nil
	}
	if f := m.o.Readiness.HandlerFeatures(handler); f != nil && !f.UserNamespaces {
		return nil, fmt.Errorf("the runtime's handler %q has no user namespaces", handler)
	}
	return m.o.IDs.Of(string(pod.UID), func() ([]*cri.IDMapping, error) { return criruntime.UserIDs(m.o.Runtime) })
}
