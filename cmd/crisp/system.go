package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/apiserver/api"
	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/ptr"
)

// systemCommand shows the use of disk space, and frees it.
func systemCommand(c *cli) *cobra.Command {
	var force, volumes bool
	cmd := &cobra.Command{Use: "system df | prune [-f] [--volumes]", Short: "show disk usage, or remove what is unused", ValidArgs: []string{"df", "prune"}}
	fs := cmd.Flags()
	fs.BoolVarP(&force, "force", "f", false, "for prune: do not ask")
	fs.BoolVar(&volumes, "volumes", false, "for prune: also claims that no pod names, with their content")
	return runs(cmd, func(rest []string) error {
		switch {
		case len(rest) == 1 && rest[0] == "df":
			return c.diskUse()
		case len(rest) == 1 && rest[0] == "prune":
			return c.pruneAll(force, volumes)
		}
		return usageError("system takes df or prune")
	})
}

// A use is a row of system df.
type use struct {
	count, active    int
	bytes, reclaimed uint64
}

// diskUse prints the disk usage of images, containers, logs and volumes. Only the agent knows logs
// and volumes; without it they are left out.
func (c *cli) diskUse() error {
	all, err := c.images()
	if err != nil {
		return err
	}
	unused, err := c.unusedImages()
	if err != nil {
		return err
	}
	images := use{count: len(all), active: len(all) - len(unused)}
	for _, i := range all {
		images.bytes += i.Size
	}
	for _, i := range unused {
		images.reclaimed += i.Size
	}
	list, err := c.runtime.ListContainers(c.ctx, nil)
	if err != nil {
		return criruntime.Fault(err)
	}
	layers, err := c.runtime.ListContainerStats(c.ctx, nil)
	if err != nil {
		return criruntime.Fault(err)
	}
	written := map[string]uint64{}
	for _, s := range layers {
		written[s.GetAttributes().GetId()] = s.GetWritableLayer().GetUsedBytes().GetValue()
	}
	var containers use
	for _, b := range list {
		containers.count++
		containers.bytes += written[b.Id]
		if b.State == cri.ContainerState_CONTAINER_RUNNING {
			containers.active++
		} else {
			containers.reclaimed += written[b.Id]
		}
	}
	t := c.columns("TYPE", "TOTAL", "ACTIVE", "SIZE", "RECLAIMABLE")
	line := func(name string, u use) {
		row(t, false, "", []string{name, fmt.Sprint(u.count), fmt.Sprint(u.active), size(u.bytes), size(u.reclaimed)})
	}
	line("Images", images)
	line("Containers", containers)
	if logs, dirs, claims, err := c.podDisk(); err == nil {
		line("Logs", logs)
		line("Pod volumes", dirs)
		line("Claims", claims)
	}
	return t.Flush()
}

// podDisk returns the disk usage of logs, pods' own volumes and claims, as the agent reports it.
func (c *cli) podDisk() (logs, dirs, claims use, err error) {
	var summary stats.Summary
	if err = c.fetch("/stats/summary", nil, &summary); err != nil {
		return
	}
	of := map[string]bool{}
	for _, p := range summary.Pods {
		for _, container := range p.Containers {
			if container.Logs != nil {
				logs.count, logs.active, logs.bytes = logs.count+1, logs.active+1, logs.bytes+ptr.Deref(container.Logs.UsedBytes, 0)
			}
		}
		for _, v := range p.VolumeStats {
			if v.PVCRef == nil {
				dirs.count, dirs.active, dirs.bytes = dirs.count+1, dirs.active+1, dirs.bytes+ptr.Deref(v.UsedBytes, 0)
			} else if key := v.PVCRef.Namespace + "/" + v.PVCRef.Name; !of[key] {
				of[key] = true
				claims.bytes += ptr.Deref(v.UsedBytes, 0)
			}
		}
	}
	count, unneeded, err := c.claims()
	claims.count, claims.active = count, count-len(unneeded)
	return logs, dirs, claims, err
}

// claims returns the number of claims, and those that are not needed: of no pod and no manifest.
func (c *cli) claims() (count int, unneeded []object, err error) {
	items, err := c.objects(claimKind, "", nil)
	if err != nil {
		return 0, nil, err
	}
	var pods v1.PodList
	if err := c.fetch("/pods", nil, &pods); err != nil {
		return 0, nil, err
	}
	named := map[string]bool{}
	for _, p := range pods.Items {
		for _, v := range p.Spec.Volumes {
			if v.PersistentVolumeClaim != nil {
				named[p.Namespace+"/"+v.PersistentVolumeClaim.ClaimName] = true
			}
		}
	}
	for _, u := range items {
		if u.GetAnnotations()[manifest.AnnotationSource] == manifest.SourceAPI && !named[u.GetNamespace()+"/"+u.GetName()] {
			unneeded = append(unneeded, objectOf(claimKind, &u))
		}
	}
	return len(items), unneeded, nil
}

var claimKind, _ = api.KindOf("PersistentVolumeClaim")

// pruneAll removes ended pods that were applied or run, unused images, and claims that no pod
// names. Stopped pods stay.
func (c *cli) pruneAll(force, volumes bool) error {
	what := "pods that have ended, and images that no container uses"
	if volumes {
		what = "pods that have ended, images that no container uses, and claims that no pod names, with what is in them"
	}
	if !force {
		answer := c.askLine(bufio.NewReader(c.stdin), "This removes "+what+". Go on? [y/N] ")
		if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
			return &exitError{exitFailure, "nothing was removed"}
		}
	}
	var pods v1.PodList
	if err := c.fetch("/pods", nil, &pods); err != nil {
		return err
	}
	var ended []object
	for i := range pods.Items {
		p := &pods.Items[i]
		a := p.Annotations
		if podsync.Terminal(&p.Status) && a[manifest.AnnotationSource] == manifest.SourceAPI && a[manifest.AnnotationWorkload] == "" {
			ended = append(ended, objectOf(podKind, p))
		}
	}
	if err := c.deleteAll(ended, deletion{grace: -1, ignore: true, wait: true, timeout: time.Minute}); err != nil {
		return err
	}
	if volumes {
		_, unneeded, err := c.claims()
		if err != nil {
			return err
		}
		for _, cl := range unneeded {
			if err := c.deleteAll([]object{cl}, deletion{grace: -1, ignore: true}); err != nil {
				return err
			}
			if err := os.RemoveAll(filepath.Join(c.agentRoot, "pvc", cl.namespace, cl.name)); err != nil {
				return err
			}
		}
	}
	return c.pruneImages()
}
