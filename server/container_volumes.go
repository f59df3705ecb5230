package server

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/crisp-cri/crisp/image/rootfs"
	"github.com/crisp-cri/crisp/server/selinux"
	"github.com/crisp-cri/crisp/server/spec"
)

// makeVolumes creates the directories that the image declares as volumes, unless the request
// mounts something there. They are on disk, writable even if the root file system is not, and
// removed with the container.
func (d *containerDraft) makeVolumes(ctx context.Context) error {
	paths := slices.Collect(maps.Keys(d.image.Config.Config.Volumes))
	if len(paths) == 0 {
		return nil
	}
	want := rootfs.VolumesWanted{
		Paths:    paths,
		Mounted:  []string{"/etc/hosts", "/etc/hostname", "/etc/resolv.conf"},
		Reserved: []string{"/dev", "/proc", "/sys"}, // the kernel's, in every container
		IDs:      d.sb.Config().IDs,
	}
	for _, m := range d.config.Mounts {
		want.Mounted = append(want.Mounted, m.ContainerPath)
	}
	made, err := d.s.rootfs.MakeVolumes(ctx, d.cr.id, want)
	if err != nil {
		return fmt.Errorf("volumes of container %s: %w", d.config.Metadata.Name, err)
	}
	for _, v := range made {
		if d.labels.Mount != "" {
			if err := selinux.Relabel(ctx, v.Source, d.labels.Mount, stillWanted(d.sb)); err != nil {
				return fmt.Errorf("volume %s: %w", v.Path, err)
			}
		}
		d.volumes = append(d.volumes, spec.Volume(v))
	}
	return nil
}
