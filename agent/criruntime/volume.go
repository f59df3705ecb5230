package criruntime

import (
	"context"

	"github.com/crisp-cri/crisp/agent/podspec"
	"github.com/crisp-cri/crisp/agent/volume"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Volumes makes the volumes of pods.
func (d *Driver) Volumes() *volume.Maker { return d.volumes }

// imageVolumes pulls the images that the container mounts. It returns the runtime's references
// to them by those in the volumes.
func (d *Driver) imageVolumes(ctx, interrupt context.Context, pod *v1.Pod, c *v1.Container, sandbox *cri.PodSandboxConfig) (map[string]string, error) {
	refs := map[string]string{}
	for i := range c.VolumeMounts {
		v, err := podspec.VolumeOf(pod, &c.VolumeMounts[i])
		if err != nil || v.Image == nil || refs[v.Image.Reference] != "" {
			continue // a missing one is reported when it is mounted
		}
		ref, _, err := d.puller.ensure(ctx, interrupt, pod, &v1.Container{Name: c.Name, Image: v.Image.Reference, ImagePullPolicy: v.Image.PullPolicy}, sandbox)
		if err != nil {
			return nil, err
		}
		refs[v.Image.Reference] = ref
	}
	return refs, nil
}

// shown provides the fields of a pod that volumes show. These are made before the sandbox, so the
// pod has no addresses yet.
type shown struct{ *Driver }

func (s shown) Field(pod *v1.Pod, path string) (string, error) {
	return (&podspec.Input{Node: s.node(), Pod: pod}).Field(path)
}

func (s shown) Resource(pod *v1.Pod, ref *v1.ResourceFieldSelector) (string, error) {
	return (&podspec.Input{Node: s.node(), Pod: pod}).Resource(nil, ref)
}

func (s shown) Memory(pod *v1.Pod) int64 { return s.sized(pod).MostMemory() }
