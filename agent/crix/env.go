package crix

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/internal/fault"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// environment is the container's: first what envFrom brings, then env in the order
// of the manifest. A name that stands twice has its last value. A value may refer
// to names before it. ips are the sandbox's.
func (d *Driver) environment(pod *v1.Pod, c *v1.Container, ips []string) ([]*cri.KeyValue, error) {
	var env []*cri.KeyValue
	set := func(name string, value []byte) {
		env = slices.DeleteFunc(env, func(kv *cri.KeyValue) bool { return kv.Key == name })
		env = append(env, &cri.KeyValue{Key: name, Value: value})
	}
	for _, from := range c.EnvFrom {
		data, err := d.envFrom(pod.Namespace, from)
		if err != nil {
			return nil, err
		}
		for _, key := range slices.Sorted(maps.Keys(data)) {
			set(from.Prefix+key, data[key])
		}
	}
	for _, e := range c.Env {
		if e.ValueFrom == nil {
			set(e.Name, []byte(expandVariables(e.Value, lookup(env))))
			continue
		}
		value, there, err := d.valueFrom(pod, c, e.ValueFrom, ips)
		if err != nil {
			return nil, fmt.Errorf("env %s: %w", e.Name, err)
		}
		if there {
			set(e.Name, value)
		}
	}
	return env, nil
}

// envFrom returns all of a Secret, or the text of a ConfigMap, whose binary data is for
// volumes; nothing if it is optional and does not exist.
func (d *Driver) envFrom(namespace string, from v1.EnvFromSource) (map[string][]byte, error) {
	switch {
	case from.ConfigMapRef != nil:
		c, err := d.Objects.ConfigMap(namespace, from.ConfigMapRef.Name)
		if err != nil {
			return nil, unless(from.ConfigMapRef.Optional, err)
		}
		data := map[string][]byte{}
		for key, value := range c.Data {
			data[key] = []byte(value)
		}
		return data, nil
	case from.SecretRef != nil:
		s, err := d.Objects.Secret(namespace, from.SecretRef.Name)
		if err != nil {
			return nil, unless(from.SecretRef.Optional, err)
		}
		return s.Data, nil
	}
	return nil, nil
}

// unless drops the error that an optional object does not exist.
func unless(optional *bool, err error) error {
	if optional != nil && *optional && errors.Is(err, fault.NotFound) {
		return nil
	}
	return err
}

// valueFrom returns the value that from refers to; there is none if it is
// optional and does not exist.
func (d *Driver) valueFrom(pod *v1.Pod, c *v1.Container, from *v1.EnvVarSource, ips []string) (value []byte, there bool, err error) {
	var ref string
	var optional *bool
	switch {
	case from.FieldRef != nil:
		text, err := d.fieldValue(pod, from.FieldRef.FieldPath, ips)
		return []byte(text), err == nil, err
	case from.ResourceFieldRef != nil:
		text, err := d.resourceValue(pod, c, from.ResourceFieldRef)
		return []byte(text), err == nil, err
	case from.ConfigMapKeyRef != nil:
		r := from.ConfigMapKeyRef
		ref, optional = fmt.Sprintf("key %s in config map %s/%s", r.Key, pod.Namespace, r.Name), r.Optional
		object, lookupErr := d.Objects.ConfigMap(pod.Namespace, r.Name)
		if err = lookupErr; err == nil {
			text, ok := object.Data[r.Key]
			value, there = []byte(text), ok
		}
	case from.FileKeyRef != nil:
		r := from.FileKeyRef
		ref, optional = fmt.Sprintf("key %s in %s of volume %s", r.Key, r.Path, r.VolumeName), r.Optional
		text, fileErr := d.fileValue(pod, r)
		value, there, err = []byte(text), text != "", fileErr
	case from.SecretKeyRef != nil:
		r := from.SecretKeyRef
		ref, optional = fmt.Sprintf("key %s in secret %s/%s", r.Key, pod.Namespace, r.Name), r.Optional
		object, lookupErr := d.Objects.Secret(pod.Namespace, r.Name)
		if err = lookupErr; err == nil {
			value, there = object.Data[r.Key]
		}
	}
	if err == nil && !there {
		err = fault.NotFound.Errorf("there is no %s", ref)
	}
	return value, there, unless(optional, err)
}

// resourceValue is a container's request or limit in units of the divisor,
// rounded up. Who has no limit can have all that pods can.
func (d *Driver) resourceValue(pod *v1.Pod, c *v1.Container, ref *v1.ResourceFieldSelector) (string, error) {
	if ref.ContainerName != "" {
		if c = podsync.ContainerOf(&pod.Spec, ref.ContainerName); c == nil {
			return "", fmt.Errorf("pod has no container %s", ref.ContainerName)
		}
	}
	list, name, ok := strings.Cut(ref.Resource, ".")
	resources := map[string]v1.ResourceList{"limits": c.Resources.Limits, "requests": c.Resources.Requests}[list]
	if !ok || list != "limits" && list != "requests" {
		return "", fmt.Errorf("there is no resource %s", ref.Resource)
	}
	value := resources[v1.ResourceName(name)]
	if value.IsZero() && list == "limits" {
		value = d.allocatable(v1.ResourceName(name))
	}
	divisor := ref.Divisor
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	up := func(n, by int64) string { return strconv.FormatInt((n+by-1)/by, 10) }
	if name == string(v1.ResourceCPU) {
		return up(value.MilliValue(), divisor.MilliValue()), nil
	}
	return up(value.Value(), max(divisor.Value(), 1)), nil
}

// allocatable is what pods can have of a resource without asking for it: none of the
// huge pages.
func (d *Driver) allocatable(name v1.ResourceName) resource.Quantity {
	switch name {
	case v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage:
		if d.Allocatable != nil {
			return d.Allocatable()[name]
		}
	}
	return resource.Quantity{}
}

func lookup(env []*cri.KeyValue) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for _, kv := range env {
			if kv.Key == name {
				return string(kv.Value), true
			}
		}
		return "", false
	}
}

// expandVariables replaces $(NAME) by the value of NAME; $$ stands for one $. A
// name that is not known, and a $ of any other use, stay as they are.
func expandVariables(s string, value func(string) (string, bool)) string {
	var b strings.Builder
	for {
		before, rest, ok := strings.Cut(s, "$")
		b.WriteString(before)
		if !ok {
			return b.String()
		}
		if after, ok := strings.CutPrefix(rest, "$"); ok {
			b.WriteByte('$')
			s = after
			continue
		}
		name, after, closed := strings.Cut(strings.TrimPrefix(rest, "("), ")")
		if !closed || !strings.HasPrefix(rest, "(") {
			b.WriteByte('$')
			s = rest
			continue
		}
		v, known := value(name)
		if !known {
			v = "$(" + name + ")"
		}
		b.WriteString(v)
		s = after
	}
}

// fieldValue is what the downward API shows of the pod. ips are the sandbox's.
func (d *Driver) fieldValue(pod *v1.Pod, fieldPath string, ips []string) (string, error) {
	if m, key, ok := manifest.SplitSubscript(fieldPath); ok {
		if m == "metadata.labels" {
			return pod.Labels[key], nil
		}
		return pod.Annotations[key], nil
	}
	if host := strings.HasPrefix(fieldPath, "status.hostIP"); host || pod.Spec.HostNetwork && strings.HasPrefix(fieldPath, "status.podIP") {
		if ips = d.nodeIPs(); len(ips) == 0 {
			return "", fmt.Errorf("%s: the node has no address yet", fieldPath)
		}
	}
	switch fieldPath {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "metadata.labels":
		return quoted(pod.Labels), nil
	case "metadata.annotations":
		return quoted(pod.Annotations), nil
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.hostIP", "status.podIP":
		return first(ips), nil
	case "status.hostIPs", "status.podIPs":
		return strings.Join(ips, ","), nil
	}
	return "", fmt.Errorf("there is no field %s", fieldPath)
}

func first(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

// quoted writes a map as key="value" lines, sorted by key.
func quoted(m map[string]string) string {
	var lines []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		lines = append(lines, key+"="+strconv.Quote(m[key]))
	}
	return strings.Join(lines, "\n")
}
