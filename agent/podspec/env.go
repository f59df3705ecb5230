package podspec

import (
	"fmt"
	"maps"
	"slices"

	"github.com/crisp-cri/crisp/internal/fault"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Environment returns the environment of a container: the variables of envFrom, then those
// of env, in the order of the manifest. The last value of a name counts. A value may refer
// to variables before it.
func (in *Input) Environment(c *v1.Container, refs References) ([]*cri.KeyValue, error) {
	var env []*cri.KeyValue
	set := func(name string, value []byte) {
		env = slices.DeleteFunc(env, func(kv *cri.KeyValue) bool { return kv.Key == name })
		env = append(env, &cri.KeyValue{Key: name, Value: value})
	}
	for _, from := range c.EnvFrom {
		data, err := refs.envFrom(in.Pod.Namespace, from)
		if err != nil {
			return nil, err
		}
		for _, key := range slices.Sorted(maps.Keys(data)) {
			set(from.Prefix+key, data[key])
		}
	}
	for _, e := range c.Env {
		if e.ValueFrom == nil {
			set(e.Name, []byte(Expand(e.Value, lookup(env))))
			continue
		}
		value, there, err := in.valueFrom(c, e.ValueFrom, refs)
		if err != nil {
			return nil, fmt.Errorf("env %s: %w", e.Name, err)
		}
		if there {
			set(e.Name, value)
		}
	}
	return env, nil
}

// envFrom returns the data of a Secret or of a ConfigMap, without its binary data. An
// optional object that does not exist has none.
func (r References) envFrom(namespace string, from v1.EnvFromSource) (map[string][]byte, error) {
	switch {
	case from.ConfigMapRef != nil:
		c, err := referred(r.ConfigMaps, "configmap", namespace, from.ConfigMapRef.Name)
		if err != nil {
			return nil, fault.Optional(from.ConfigMapRef.Optional, err)
		}
		data := map[string][]byte{}
		for key, value := range c.Data {
			data[key] = []byte(value)
		}
		return data, nil
	case from.SecretRef != nil:
		s, err := referred(r.Secrets, "secret", namespace, from.SecretRef.Name)
		if err != nil {
			return nil, fault.Optional(from.SecretRef.Optional, err)
		}
		return s.Data, nil
	}
	return nil, nil
}

// referred returns one of the objects that a container refers to; the error is fault.NotFound.
func referred[T any](objects map[string]*T, kind, namespace, name string) (*T, error) {
	if o := objects[name]; o != nil {
		return o, nil
	}
	return nil, fault.NotFound.Errorf("there is no %s %s/%s", kind, namespace, name)
}

// valueFrom returns the value that from refers to. there is false for a missing optional value;
// the error for another missing value is fault.NotFound.
func (in *Input) valueFrom(c *v1.Container, from *v1.EnvVarSource, refs References) (value []byte, there bool, err error) {
	pod := in.Pod
	var ref string
	var optional *bool
	switch {
	case from.FieldRef != nil:
		text, err := in.Field(from.FieldRef.FieldPath)
		return []byte(text), err == nil, err
	case from.ResourceFieldRef != nil:
		text, err := in.Resource(c, from.ResourceFieldRef)
		return []byte(text), err == nil, err
	case from.ConfigMapKeyRef != nil:
		r := from.ConfigMapKeyRef
		ref, optional = fmt.Sprintf("key %s in config map %s/%s", r.Key, pod.Namespace, r.Name), r.Optional
		object, lookupErr := referred(refs.ConfigMaps, "configmap", pod.Namespace, r.Name)
		if err = lookupErr; err == nil {
			text, ok := object.Data[r.Key]
			value, there = []byte(text), ok
		}
	case from.FileKeyRef != nil:
		r := from.FileKeyRef
		ref, optional = fmt.Sprintf("key %s in %s of volume %s", r.Key, r.Path, r.VolumeName), r.Optional
		text, fileErr := refs.fileValue(pod, r)
		value, there, err = []byte(text), text != "", fileErr
	case from.SecretKeyRef != nil:
		r := from.SecretKeyRef
		ref, optional = fmt.Sprintf("key %s in secret %s/%s", r.Key, pod.Namespace, r.Name), r.Optional
		object, lookupErr := referred(refs.Secrets, "secret", pod.Namespace, r.Name)
		if err = lookupErr; err == nil {
			value, there = object.Data[r.Key]
		}
	}
	if err == nil && !there {
		err = fault.NotFound.Errorf("there is no %s", ref)
	}
	return value, there, fault.Optional(optional, err)
}
