package criruntime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/crisp-cri/crisp/agent/podspec"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/kernel"
	"github.com/opencontainers/cgroups"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// handlerOf returns the handler of the pod's RuntimeClass; "" is the runtime's default. A
// handler that the runtime does not have is an error, which lists those that it has.
func handlerOf(pod *v1.Pod, objects Objects, host Host) (string, error) {
	class, err := classOf(pod, objects)
	if err != nil || class == nil {
		return "", err
	}
	if known := host.Handlers(); len(known) > 0 && !slices.Contains(known, class.Handler) {
		return "", fmt.Errorf("runtime class %s: the runtime has no handler %q; it has %q", class.Name, class.Handler, known)
	}
	return class.Handler, nil
}

// classOf returns the RuntimeClass that a pod names; nil if it names none.
func classOf(pod *v1.Pod, objects Objects) (*nodev1.RuntimeClass, error) {
	if pod.Spec.RuntimeClassName == nil || *pod.Spec.RuntimeClassName == "" {
		return nil, nil
	}
	return objects.RuntimeClass(*pod.Spec.RuntimeClassName)
}

// Overhead returns the resources of the pod beyond those of its containers: from its spec, or
// from its RuntimeClass.
func Overhead(pod *v1.Pod, objects Objects) v1.ResourceList {
	if pod.Spec.Overhead != nil {
		return pod.Spec.Overhead
	}
	if class, err := classOf(pod, objects); err == nil && class != nil && class.Overhead != nil {
		return class.Overhead.PodFixed
	}
	return nil
}

// node returns what podspec needs of the node.
func (d *Driver) node() podspec.Node {
	return podspec.Node{
		Agent:          d.agent,
		SeccompDir:     filepath.Join(d.o.Root, "seccomp"),
		ClusterDNS:     d.o.ClusterDNS,
		ClusterDomain:  d.o.ClusterDomain,
		SeccompDefault: d.o.SeccompDefault,
		NoCPUQuota:     d.o.NoCPUQuota,
		LogLimit:       d.o.LogLimit,
		Kernel:         d.kernel,
		IPs:            d.o.Host.IPs(),
		Allocatable:    d.o.Host.Allocatable(),
	}
}

// sized returns the part of the Input that a pod's resources depend on.
func (d *Driver) sized(pod *v1.Pod) *podspec.Input {
	return &podspec.Input{Node: d.node(), Pod: pod, Overhead: Overhead(pod, d.o.Objects)}
}

// input returns the Input of a pod's sandbox and containers, without their addresses.
func (d *Driver) input(pod *v1.Pod) (in *podspec.Input, err error) {
	in = d.sized(pod)
	in.Dir, in.LogDir = d.files.Dir(string(pod.UID)), d.files.LogDir(pod)
	if in.DNS, err = d.nodeDNS(pod); err != nil {
		return nil, err
	}
	if in.Handler, err = handlerOf(pod, d.o.Objects, d.o.Host); err != nil {
		return nil, err
	}
	if in.UserNamespace, err = d.o.ContainerManager.UserNamespace(pod, in.Handler); err != nil {
		return nil, err
	}
	in.CgroupParent = d.o.ContainerManager.CgroupParent(pod)
	in.RecursiveReadOnly = d.o.Host.Features(in.Handler).GetRecursiveReadOnlyMounts()
	return in, nil
}

// UserIDs returns the host IDs in the user namespaces of all sandboxes, whichever client made them.
func UserIDs(runtime internalapi.RuntimeService) ([]*cri.IDMapping, error) {
	ctx := context.Background() // each call has its time limit
	list, err := runtime.ListPodSandbox(ctx, nil)
	if err != nil {
		return nil, Fault(err)
	}
	var all []*cri.IDMapping
	for _, sb := range list {
		resp, err := runtime.PodSandboxStatus(ctx, sb.Id, false)
		if err = Fault(err); errors.Is(err, fault.NotFound) {
			continue
		} else if err != nil {
			return nil, err
		}
		ns := resp.GetStatus().GetLinux().GetNamespaces().GetOptions().GetUsernsOptions()
		all = append(append(all, ns.GetUids()...), ns.GetGids()...)
	}
	return all, nil
}

// resolvedConf has the upstream servers of systemd-resolved. The node's resolv.conf has only its
// stub, on a loopback address (systemd-resolved.service(8)).
const resolvedConf = "/run/systemd/resolve/resolv.conf"

// nodeDNS reads the DNS settings of the node that the pod needs.
func (d *Driver) nodeDNS(pod *v1.Pod) (dns podspec.NodeDNS, err error) {
	if pod.Spec.DNSPolicy == v1.DNSNone || d.o.ResolvConf == "" {
		return dns, nil
	}
	dns.Path = d.o.ResolvConf
	if dns.Own, err = readResolvConf(d.o.ResolvConf); err != nil || !podspec.NeedsBehind(pod, dns.Own) {
		return dns, err
	}
	dns.Behind, err = readResolvConf(d.resolved)
	if errors.Is(err, fs.ErrNotExist) { // another program than systemd-resolved listens there
		err = nil
	}
	return dns, err
}

func readResolvConf(path string) (*cri.DNSConfig, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	dns, err := podspec.ParseResolvConf(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return dns, nil
}

func readKernel() podspec.Kernel {
	k := podspec.Kernel{Memory: kernel.TotalMemory(), HugePages: slices.Sorted(slices.Values(cgroups.HugePageSizes()))}
	_, err := os.Stat("/sys/fs/cgroup/cgroup.controllers")
	k.Unified = err == nil
	k.Swap = kernel.SwapLimit()
	_, err = os.Stat("/sys/fs/selinux/enforce")
	k.SELinux = err == nil
	k.Throttles, _ = filepath.Glob("/sys/devices/system/cpu/cpu[0-9]*/thermal_throttle") // no error: the pattern is valid
	slices.SortFunc(k.Throttles, func(a, b string) int { return cpuOf(a) - cpuOf(b) })
	return k
}

func cpuOf(path string) int {
	n, _ := strconv.Atoi(strings.TrimPrefix(filepath.Base(filepath.Dir(path)), "cpu")) // the glob's pattern ensures a number
	return n
}
