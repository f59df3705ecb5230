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

// files returns the files that the volume shows now, by path.
func (m *Maker) files(pod *v1.Pod, v *v1.Volume) (map[string]file, error) {
	switch {
	case v.ConfigMap != nil:
		c := v.ConfigMap
		return m.configMap(pod, c.Name, c.Items, mode(c.DefaultMode, defaultMode), c.Optional)
	case v.Secret != nil:
		s := v.Secret
		return m.secret(pod, s.SecretName, s.Items, mode(s.DefaultMode, defaultMode), s.Optional)
	case v.DownwardAPI != nil:
		return m.downward(pod, v.DownwardAPI.Items, mode(v.DownwardAPI.DefaultMode, defaultMode))
	}
	all := map[string]file{}
	for _, source := range v.Projected.Sources {
		var files map[string]file
		var err error
		def := mode(v.Projected.DefaultMode, defaultMode)
		switch c, s, d := source.ConfigMap, source.Secret, source.DownwardAPI; {
		case c != nil:
			files, err = m.configMap(pod, c.Name, c.Items, def, c.Optional)
		case s != nil:
			files, err = m.secret(pod, s.Name, s.Items, def, s.Optional)
		case d != nil:
			files, err = m.downward(pod, d.Items, def)
		default:
			err = errors.New("a projected source of this kind is not supported")
		}
		if err != nil {
			return nil, err
		}
		maps.Copy(all, files) // of two files at one path the later one wins
	}
	return all, nil
}

const defaultMode = fs.FileMode(0o644)

// mode returns the mode of a file; def if none is given.
func mode(m *int32, def fs.FileMode) fs.FileMode {
	if m == nil {
		return def
	}
	return permissions(*m)
}

// permissions converts the number of chmod(2). Go has the set-ID and sticky bits
// elsewhere.
func permissions(m int32) fs.FileMode {
	out := fs.FileMode(m & 0o777)
	for bit, special := range map[int32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if m&bit != 0 {
			out |= special
		}
	}
	return out
}

// unless drops the error that an optional object does not exist.
func unless(optional *bool, err error) error {
	if ptr.Deref(optional, false) && errors.Is(err, fault.NotFound) {
		return nil
	}
	return err
}

func (m *Maker) configMap(pod *v1.Pod, name string, items []v1.KeyToPath, def fs.FileMode, optional *bool) (map[string]file, error) {
	c, err := m.objects.ConfigMap(pod.Namespace, name)
	if err != nil {
		return nil, unless(optional, err)
	}
	data := maps.Clone(c.BinaryData)
	if data == nil {
		data = map[string][]byte{}
	}
	for key, text := range c.Data {
		data[key] = []byte(text)
	}
	return project(data, items, def, optional, "config map "+pod.Namespace+"/"+name)
}

func (m *Maker) secret(pod *v1.Pod, name string, items []v1.KeyToPath, def fs.FileMode, optional *bool) (map[string]file, error) {
	s, err := m.objects.Secret(pod.Namespace, name)
	if err != nil {
		return nil, unless(optional, err)
	}
	return project(s.Data, items, def, optional, "secret "+pod.Namespace+"/"+name)
}

// project returns the files of the named items; of all data if none are named.
func project(data map[string][]byte, items []v1.KeyToPath, def fs.FileMode, optional *bool, where string) (map[string]file, error) {
	files := map[string]file{}
	if len(items) == 0 {
		for key, content := range data {
			files[key] = file{content, def}
		}
		return files, nil
	}
	for _, item := range items {
		content, ok := data[item.Key]
		if !ok {
			if err := unless(optional, fault.NotFound.Errorf("there is no key %s in %s", item.Key, where)); err != nil {
				return nil, err
			}
			continue
		}
		files[path.Clean(item.Path)] = file{content, mode(item.Mode, def)}
	}
	return files, nil
}

func (m *Maker) downward(pod *v1.Pod, items []v1.DownwardAPIVolumeFile, def fs.FileMode) (map[string]file, error) {
	files := map[string]file{}
	for i := range items {
		item := &items[i]
		var text string
		var err error
		switch {
		case item.FieldRef != nil:
			text, err = m.facts.Field(pod, item.FieldRef.FieldPath)
		case item.ResourceFieldRef != nil:
			text, err = m.facts.Resource(pod, item.ResourceFieldRef)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", item.Path, err)
		}
		files[path.Clean(item.Path)] = file{[]byte(text), mode(item.Mode, def)}
	}
	return files, nil
}
