package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"

	"github.com/crisp-cri/crisp/internal/fault"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// defaultMode is the mode of files if neither the volume nor the item sets one.
const defaultMode = 0o644

// files returns the current files of the volume, by path.
func (m *Maker) files(pod *v1.Pod, v *v1.Volume) (map[string]file, error) {
	sources, mode := projections(v)
	all := map[string]file{}
	for _, source := range sources {
		files, err := m.project(pod, source, ptr.Deref(mode, defaultMode))
		if err != nil {
			return nil, err
		}
		maps.Copy(all, files) // of two files at one path the later one wins
	}
	return all, nil
}

// projections returns the sources of a volume as those of a projected volume, and the mode of
// its files.
func projections(v *v1.Volume) (sources []v1.VolumeProjection, mode *int32) {
	switch c, s, d := v.ConfigMap, v.Secret, v.DownwardAPI; {
	case c != nil:
		return []v1.VolumeProjection{{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: c.LocalObjectReference, Items: c.Items, Optional: c.Optional}}}, c.DefaultMode
	case s != nil:
		name := v1.LocalObjectReference{Name: s.SecretName}
		return []v1.VolumeProjection{{Secret: &v1.SecretProjection{LocalObjectReference: name, Items: s.Items, Optional: s.Optional}}}, s.DefaultMode
	case d != nil:
		return []v1.VolumeProjection{{DownwardAPI: &v1.DownwardAPIProjection{Items: d.Items}}}, d.DefaultMode
	}
	return v.Projected.Sources, v.Projected.DefaultMode
}

// project returns the files of one source. mode is the default mode of its files.
func (m *Maker) project(pod *v1.Pod, source v1.VolumeProjection, mode int32) (map[string]file, error) {
	switch c, s, d := source.ConfigMap, source.Secret, source.DownwardAPI; {
	case c != nil:
		object, err := m.objects.ConfigMap(pod.Namespace, c.Name)
		if err != nil {
			return nil, fault.Optional(c.Optional, err)
		}
		data := map[string][]byte{}
		maps.Copy(data, object.BinaryData)
		for key, text := range object.Data {
			data[key] = []byte(text)
		}
		return named(data, c.Items, mode, c.Optional, "config map "+pod.Namespace+"/"+c.Name)
	case s != nil:
		object, err := m.objects.Secret(pod.Namespace, s.Name)
		if err != nil {
			return nil, fault.Optional(s.Optional, err)
		}
		return named(object.Data, s.Items, mode, s.Optional, "secret "+pod.Namespace+"/"+s.Name)
	case d != nil:
		return m.downward(pod, d.Items, mode)
	}
	return nil, errors.New("a projected source of this kind is not supported")
}

// named returns the files of items or, without items, of all data. where names the object in
// errors.
func named(data map[string][]byte, items []v1.KeyToPath, mode int32, optional *bool, where string) (map[string]file, error) {
	files := map[string]file{}
	if len(items) == 0 {
		for key, content := range data {
			files[key] = file{content, fs.FileMode(mode)}
		}
		return files, nil
	}
	for _, item := range items {
		content, ok := data[item.Key]
		if !ok {
			if err := fault.Optional(optional, fault.NotFound.Errorf("there is no key %s in %s", item.Key, where)); err != nil {
				return nil, err
			}
			continue
		}
		files[path.Clean(item.Path)] = file{content, fs.FileMode(ptr.Deref(item.Mode, mode))}
	}
	return files, nil
}

func (m *Maker) downward(pod *v1.Pod, items []v1.DownwardAPIVolumeFile, mode int32) (map[string]file, error) {
	files := map[string]file{}
	for i := range items {
		item := &items[i]
		var text string
		var err error
		switch {
		case item.FieldRef != nil:
			text, err = m.inputs.Facts(pod).Field(item.FieldRef.FieldPath)
		case item.ResourceFieldRef != nil:
			text, err = m.inputs.Facts(pod).Resource(nil, item.ResourceFieldRef)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", item.Path, err)
		}
		files[path.Clean(item.Path)] = file{[]byte(text), fs.FileMode(ptr.Deref(item.Mode, mode))}
	}
	return files, nil
}
