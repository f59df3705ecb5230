package criruntime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/crisp-cri/crisp/agent/podfiles"
	"github.com/crisp-cri/crisp/agent/podspec"
	"github.com/crisp-cri/crisp/agent/volume"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/regular"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// containerConfig translates one container, reads the objects that its environment refers to,
// and makes the sources of its mounts. images maps the references in its image volumes to the
// runtime's.
func (d *Driver) containerConfig(in *podspec.Input, c *podspec.Container, images map[string]string) (*cri.ContainerConfig, error) {
	refs, err := d.references(in.Pod, c.Spec)
	if err != nil {
		return nil, err
	}
	if c.Env, err = in.Environment(c.Spec, refs); err != nil {
		return nil, err
	}
	if c.Sources, err = d.sources(in.Pod, c, images); err != nil {
		return nil, err
	}
	uid := string(in.Pod.UID)
	text, err := hosts(in)
	if err != nil {
		return nil, err
	}
	if text != "" {
		c.HostsFile = d.files.HostsFile(uid)
	}
	resolv, follows := in.ResolvConf()
	if follows {
		c.ResolvFile = d.files.ResolvFile(uid)
	}
	if c.Spec.TerminationMessagePath != "" {
		c.MessageFile = d.files.NewMessageFile(uid, c.Spec.Name)
	}
	config, err := in.Container(c)
	if err != nil {
		return nil, err
	}
	for _, m := range config.Mounts {
		switch m.HostPath {
		case "":
		case c.HostsFile:
			err = d.files.WriteHosts(in.Pod, text)
		case c.ResolvFile:
			err = d.files.WriteResolvConf(uid, resolv, false)
		case c.MessageFile:
			err = podfiles.MakeMessageFile(m.HostPath)
		}
		if err != nil {
			return nil, err
		}
	}
	return config, nil
}

// references are what the environment of a container refers to.
func (d *Driver) references(pod *v1.Pod, c *v1.Container) (podspec.References, error) {
	refs := podspec.References{ConfigMaps: map[string]*v1.ConfigMap{}, Secrets: map[string]*v1.Secret{}, Files: map[podspec.FileRef]podspec.EnvFile{}}
	var problems []error
	configMap := func(name string) {
		o, err := d.o.Objects.ConfigMap(pod.Namespace, name)
		refs.ConfigMaps[name] = o
		problems = append(problems, gone(err))
	}
	secret := func(name string) {
		o, err := d.o.Objects.Secret(pod.Namespace, name)
		refs.Secrets[name] = o
		problems = append(problems, gone(err))
	}
	for _, from := range c.EnvFrom {
		if from.ConfigMapRef != nil {
			configMap(from.ConfigMapRef.Name)
		}
		if from.SecretRef != nil {
			secret(from.SecretRef.Name)
		}
	}
	for _, e := range c.Env {
		switch from := e.ValueFrom; {
		case from == nil:
		case from.ConfigMapKeyRef != nil:
			configMap(from.ConfigMapKeyRef.Name)
		case from.SecretKeyRef != nil:
			secret(from.SecretKeyRef.Name)
		case from.FileKeyRef != nil:
			file := podspec.FileRef{Volume: from.FileKeyRef.VolumeName, Path: from.FileKeyRef.Path}
			data, err := d.envFile(pod, file)
			refs.Files[file] = podspec.EnvFile{Data: data, Err: err}
		}
	}
	return refs, errors.Join(problems...)
}

// envFile reads a file of an emptyDir. The containers control it: it may be a link that leads
// out, or a pipe without a writer.
func (d *Driver) envFile(pod *v1.Pod, file podspec.FileRef) ([]byte, error) {
	dir, ok := d.volumes.EmptyDirs(pod)[file.Volume]
	if !ok {
		return nil, fmt.Errorf("volume %s is not an emptyDir", file.Volume)
	}
	f, err := regular.OpenBeneath(dir, file.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.NotFound.Errorf("volume %s: %v", file.Volume, err)
	}
	if err != nil {
		return nil, fmt.Errorf("volume %s: %w", file.Volume, err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, podspec.MaxEnvFile))
	if err != nil {
		return nil, fmt.Errorf("%s of volume %s: %w", file.Path, file.Volume, err)
	}
	return data, nil
}

// sources returns the sources of a container's mounts.
func (d *Driver) sources(pod *v1.Pod, c *podspec.Container, images map[string]string) ([]podspec.Source, error) {
	var list []podspec.Source
	for i := range c.Spec.VolumeMounts {
		m := &c.Spec.VolumeMounts[i]
		v, err := podspec.VolumeOf(pod, m)
		if err != nil {
			return nil, err
		}
		path, err := podspec.SubPath(m, c.Env)
		if err != nil {
			return nil, err
		}
		source := podspec.Source{ReadOnly: d.volumes.ReadOnly(pod, v)}
		switch {
		case v.Image != nil:
			source.Image = images[v.Image.Reference]
		case path == "":
			source.Path = d.volumes.Path(pod, v)
		default:
			if source.Path, err = d.volumes.SubPath(pod, v, path, c.Spec.Name, i); err != nil {
				return nil, err
			}
		}
		list = append(list, source)
	}
	return list, nil
}

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

// Facts implements volume.Inputs. Volumes are made before the sandbox, so the pod has no addresses
// yet.
func (d *Driver) Facts(pod *v1.Pod) volume.Facts { return d.sized(pod) }

// hosts returns the content of the pod's /etc/hosts; "" while the pod has no address.
func hosts(in *podspec.Input) (string, error) {
	if !in.Pod.Spec.HostNetwork {
		return in.Hosts(nil), nil
	}
	node, err := os.ReadFile("/etc/hosts")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	return in.Hosts(node), nil
}
