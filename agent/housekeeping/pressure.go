package housekeeping

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/node"
	"github.com/crisp-cri/crisp/agent/podspec"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/volume"
	"github.com/crisp-cri/crisp/internal/kernel"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	helper "k8s.io/component-helpers/resource"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Measure implements evictNode.
func (k *Keeper) Measure(ctx context.Context) map[Signal]node.Observation {
	now := map[Signal]node.Observation{}
	if m, ok := node.ReadMemory(); ok {
		now[Memory] = node.Observation{Available: int64(m.Available()), Capacity: int64(m.Total)}
	}
	if o, ok := k.o.Cgroups.Memory(); ok {
		now[PodsMemory] = o
	}
	if o, ok := pidsNow(); ok {
		now[PIDs] = o
	}
	if bytes, inodes, err := Space(k.o.Root); err == nil {
		now[NodeFS] = bytes
		if inodes.Capacity > 0 { // some file systems have no fixed number of inodes
			now[NodeInodes] = inodes
		}
	}
	if dir, err := k.imagesDir(ctx); err == nil {
		if bytes, inodes, err := Space(dir); err == nil {
			now[ImageFS] = bytes
			if inodes.Capacity > 0 {
				now[ImageInodes] = inodes
			}
		}
	}
	return now
}

// Space returns the bytes and inodes of the file system of a path (statfs(2)). The available
// bytes are those for unprivileged users.
func Space(path string) (bytes, inodes node.Observation, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return bytes, inodes, fmt.Errorf("%s: %w", path, err)
	}
	size := int64(s.Bsize)
	return node.Observation{Available: int64(s.Bavail) * size, Capacity: int64(s.Blocks) * size},
		node.Observation{Available: int64(s.Ffree), Capacity: int64(s.Files)}, nil
}

// ImagesApart implements evictNode.
func (k *Keeper) ImagesApart() bool {
	dir, err := k.imagesDir(context.Background())
	if err != nil {
		return false
	}
	var node, images unix.Stat_t
	if unix.Stat(k.o.Root, &node) != nil || unix.Stat(dir, &images) != nil {
		return false
	}
	return node.Dev != images.Dev
}

// pidsNow reads the number of threads, from proc_loadavg(5), and its maximum: the lower of
// pid_max and threads-max.
func pidsNow() (o node.Observation, ok bool) {
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return o, false
	}
	words := strings.Fields(string(load))
	if len(words) < 4 {
		return o, false
	}
	_, total, _ := strings.Cut(words[3], "/")
	used, err := strconv.ParseInt(total, 10, 64)
	if err != nil {
		return o, false
	}
	for _, name := range []string{"pid_max", "threads-max"} {
		most, err := strconv.ParseInt(kernel.Sysctl("kernel/"+name), 10, 64)
		if err != nil {
			return o, false
		}
		if o.Capacity == 0 || most < o.Capacity {
			o.Capacity = most
		}
	}
	o.Available = o.Capacity - used
	return o, true
}

// Usage implements evictPods.
func (k *Keeper) Usage(ctx context.Context, all bool) ([]podUse, error) {
	var pods []podUse
	for _, pod := range k.o.Pods.Active(k.o.Pods.Allocated()) {
		if k.o.Pods.Halted(pod) {
			continue // it is ending already, or nothing of it runs
		}
		if all || bounded(pod) {
			pods = append(pods, podUse{
				Pod: pod, Requests: k.o.Pods.Requests(pod), Use: map[v1.ResourceName]int64{}, Containers: map[string]int64{}, Volumes: map[string]int64{},
			})
		}
	}
	if len(pods) == 0 {
		return nil, nil
	}
	stats, err := criruntime.PodStats(ctx, k.o.Runtime)
	if err != nil {
		return nil, err
	}
	by := map[string]*cri.PodSandboxStats{}
	for _, s := range stats {
		by[s.GetAttributes().GetLabels()[podspec.LabelPodUID]] = s
	}
	for i := range pods {
		k.measurePod(&pods[i], by[string(pods[i].UID)])
	}
	return pods, nil
}

// bounded reports whether a pod has a limit of disk space, which can only be enforced by
// measuring its usage.
func bounded(pod *v1.Pod) bool {
	for _, v := range pod.Spec.Volumes {
		if v.EmptyDir != nil && v.EmptyDir.SizeLimit != nil {
			return true
		}
	}
	_, ok := helper.PodLimits(pod, helper.PodResourcesOptions{})[v1.ResourceEphemeralStorage]
	return ok
}

// measurePod fills in the usage of a pod: memory, processes and writable layers from s, logs and
// emptyDirs from the disk.
func (k *Keeper) measurePod(p *podUse, s *cri.PodSandboxStats) {
	p.Use[v1.ResourceMemory] = int64(s.GetLinux().GetMemory().GetWorkingSetBytes().GetValue())
	p.Use["pids"] = int64(s.GetLinux().GetProcess().GetProcessCount().GetValue())
	disk, inodes, layers := int64(0), int64(0), int64(0)
	for _, container := range s.GetLinux().GetContainers() {
		layer := container.GetWritableLayer()
		used := int64(layer.GetUsedBytes().GetValue())
		p.Containers[container.GetAttributes().GetMetadata().GetName()] += used
		layers += used
		inodes += int64(layer.GetInodesUsed().GetValue())
	}
	layerFiles := inodes
	logs := k.o.Files.LogDir(p.Pod)
	for c := range podsync.Lasting(&p.Spec) {
		p.Containers[c.Name] += 0 // its log counts even while it does not run
	}
	for name := range p.Containers {
		used, _ := volume.Usage(filepath.Join(logs, name))
		p.Containers[name] += used
	}
	for _, used := range p.Containers {
		disk += used
	}
	dirs := k.o.Driver.Volumes().EmptyDirs(p.Pod)
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if dir, ok := dirs[v.Name]; ok {
			used, files := volume.Usage(dir)
			p.Volumes[v.Name] = used
			if v.EmptyDir.Medium == v1.StorageMediumDefault {
				disk, inodes = disk+used, inodes+files
			}
		}
	}
	p.Use[v1.ResourceEphemeralStorage], p.Use["inodes"] = disk, inodes
	p.Use[LayersDisk], p.Use[LayersFiles] = layers, layerFiles
	p.Use[NodeDisk], p.Use[NodeFiles] = disk-layers, inodes-layerFiles
}

// Reclaim implements evictNode.
func (k *Keeper) Reclaim(ctx context.Context) {
	k.removeDead(ctx)
	freed, err := k.collect.FreeAll(ctx)
	if err != nil {
		k.o.Log.WarnContext(ctx, "unused images not removed", "err", err)
		return
	}
	k.o.Log.InfoContext(ctx, "unused images removed for lack of space", "bytes", freed)
}

const (
	// removing is how long removeDead waits for dead containers to be removed.
	removing       = 10 * time.Second
	removingPeriod = 100 * time.Millisecond
)

// removeDead makes the workers remove the dead containers of finished pods, so that their images
// become unused, and earlier attempts of containers in the other pods.
func (k *Keeper) removeDead(ctx context.Context) {
	finished := map[types.UID]bool{}
	for _, pod := range k.o.Pods.Wanted() {
		if k.o.Pods.Finished(pod) {
			finished[pod.UID] = true
		}
	}
	done, ok := k.o.Workers.Tidy()
	if !ok {
		return
	}
	defer done()
	wait.PollUntilContextTimeout(ctx, removingPeriod, removing, true, func(context.Context) (bool, error) {
		return !k.anyLeft(ctx, finished), nil
	})
}

// anyLeft reports whether one of these pods, by UID, still has a container or anything else
// that only a running pod needs.
func (k *Keeper) anyLeft(ctx context.Context, pods map[types.UID]bool) bool {
	for _, pod := range k.o.Pods.Wanted() {
		if pods[pod.UID] && !k.o.Driver.Clean(pod.UID) {
			return true
		}
	}
	list, err := k.o.Runtime.ListContainers(ctx, nil)
	if err != nil {
		return false
	}
	for _, container := range list {
		if pods[types.UID(container.GetLabels()[podspec.LabelPodUID])] {
			return true
		}
	}
	return false
}

// Evict implements evictPods.
func (k *Keeper) Evict(pod *v1.Pod, v podsync.Verdict) { k.o.Workers.End(pod, v) }

// Clean implements evictPods.
func (k *Keeper) Clean(pod *v1.Pod) bool { return k.o.Driver.Clean(pod.UID) }
