package housekeeping

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/evict"
	"github.com/crisp-cri/crisp/agent/node"
	"github.com/crisp-cri/crisp/agent/podspec"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/volume"
	"github.com/crisp-cri/crisp/internal/kernel"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	helper "k8s.io/component-helpers/resource"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Measure implements evict.Node.
func (k *Keeper) Measure(ctx context.Context) map[evict.Signal]evict.Observation {
	now := map[evict.Signal]evict.Observation{}
	if m, ok := node.ReadMemory(); ok {
		now[evict.Memory] = evict.Observation{Available: int64(m.Available()), Capacity: int64(m.Total)}
	}
	if o, ok := k.o.Cgroups.Memory(); ok {
		now[evict.PodsMemory] = o
	}
	if o, ok := pidsNow(); ok {
		now[evict.PIDs] = o
	}
	if bytes, inodes, err := Space(k.o.Root); err == nil {
		now[evict.NodeFS] = bytes
		if inodes.Capacity > 0 { // some file systems have no fixed number of inodes
			now[evict.NodeInodes] = inodes
		}
	}
	if dir, err := k.imagesDir(ctx); err == nil {
		if bytes, inodes, err := Space(dir); err == nil {
			now[evict.ImageFS] = bytes
			if inodes.Capacity > 0 {
				now[evict.ImageInodes] = inodes
			}
		}
	}
	return now
}

// Space returns the bytes and inodes of the file system of a path (statfs(2)). The available
// bytes are those for unprivileged users.
func Space(path string) (bytes, inodes evict.Observation, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return bytes, inodes, fmt.Errorf("%s: %w", path, err)
	}
	size := int64(s.Bsize)
	return evict.Observation{Available: int64(s.Bavail) * size, Capacity: int64(s.Blocks) * size},
		evict.Observation{Available: int64(s.Ffree), Capacity: int64(s.Files)}, nil
}

// ImagesApart implements evict.Node.
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
func pidsNow() (o evict.Observation, ok bool) {
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

// Usage implements evict.Pods.
func (k *Keeper) Usage(ctx context.Context, all bool) ([]evict.Pod, error) {
	var pods []evict.Pod
	for _, pod := range k.o.Pods.Active(k.o.Pods.Allocated()) {
		if k.o.Pods.Finished(pod) {
			continue // it is ending already
		}
		if all || bounded(pod) {
			pods = append(pods, evict.Pod{
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
func (k *Keeper) measurePod(p *evict.Pod, s *cri.PodSandboxStats) {
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
	p.Use[evict.LayersDisk], p.Use[evict.LayersFiles] = layers, layerFiles
	p.Use[evict.NodeDisk], p.Use[evict.NodeFiles] = disk-layers, inodes-layerFiles
}
