package server

import (
	"context"
	"fmt"
	"maps"
	"slices"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/server/selinux"
	"github.com/crisp-cri/crisp/server/spec"
)

// makeVolumes makes the directories that the image wants mounted, but where the request
// mounts something: what they are made of is on a disk, can be written to though the
// root file system cannot, and goes with the container.
func (s *Server) makeVolumes(ctx context.Context, id string, sb *oci.Sandbox, config *cri.ContainerConfig, img v1.ImageConfig, labels selinux.Labels) ([]spec.Volume, error) {
	if len(img.Volumes) == 0 {
		return nil, nil
	}
	want := image.VolumesWanted{
		Paths:    slices.Collect(maps.Keys(img.Volumes)),
		Mounted:  []string{"/etc/hosts", "/etc/hostname", "/etc/resolv.conf"},
		Reserved: []string{"/dev", "/proc", "/sys"}, // the kernel's, in every container
		IDs:      sb.Config().IDs,
	}
	for _, m := range config.Mounts {
		want.Mounted = append(want.Mounted, m.ContainerPath)
	}
	made, err := s.images.MakeVolumes(ctx, id, want)
	if err != nil {
		return nil, fmt.Errorf("volumes of container %s: %w", config.Metadata.Name, err)
	}
	var list []spec.Volume
	for _, v := range made {
		if labels.Mount != "" {
			if err := selinux.Relabel(ctx, v.Source, labels.Mount, stillWanted(sb)); err != nil {
				return nil, fmt.Errorf("volume %s: %w", v.Path, err)
			}
		}
		list = append(list, spec.Volume(v))
	}
	return list, nil
}
