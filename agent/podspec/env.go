package podspec

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/internal/fault"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubectl/pkg/util/fieldpath"
	downward "k8s.io/kubectl/pkg/util/resource"
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

// Expand replaces $(NAME) by the value of NAME, and $$ by $. Unknown names and any other $
// stay as they are.
func Expand(s string, value func(string) (string, bool)) string {
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

// MaxEnvFile is the maximum size of a file of variables, in bytes.
const MaxEnvFile = 1 << 20

// fileValue returns the value of a key in a file that a container has written to an
// emptyDir. As in the kubelet, a missing key and an empty value are the same.
func (r References) fileValue(pod *v1.Pod, ref *v1.FileKeySelector) (string, error) {
	if !slices.ContainsFunc(pod.Spec.Volumes, func(v v1.Volume) bool { return v.Name == ref.VolumeName && v.EmptyDir != nil }) {
		return "", fmt.Errorf("volume %s is not an emptyDir", ref.VolumeName)
	}
	file, ok := r.Files[FileRef{ref.VolumeName, ref.Path}]
	if !ok {
		return "", fault.NotFound.Errorf("volume %s: there is no file %s", ref.VolumeName, ref.Path)
	}
	if file.Err != nil {
		return "", file.Err
	}
	value, err := readEnvFile(bytes.NewReader(file.Data), ref.Key)
	if err != nil {
		return "", fmt.Errorf("%s of volume %s: %w", ref.Path, ref.VolumeName, err)
	}
	return value, nil
}

// readEnvFile returns the value of a key in lines of the form NAME='value' (Kubernetes'
// EnvFiles, a subset of what a shell reads); "" if the key is missing. Values are literal text in
// single quotes and may span lines. A # begins a comment at the start of a line or after a value. A
// blank before the quote makes the value empty.
func readEnvFile(r io.Reader, key string) (string, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, MaxEnvFile)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimLeft(lines.Text(), " \t")
		if line == "" || line[0] == '#' {
			continue
		}
		name, rest, ok := strings.Cut(line, "=")
		switch {
		case !ok:
			return "", fmt.Errorf("line %d: want NAME='value'", n)
		case name == "" || strings.ContainsAny(name, " \t"):
			return "", fmt.Errorf("line %d: want a name right before the =", n)
		}
		if strings.HasPrefix(rest, " ") || strings.HasPrefix(rest, "\t") {
			if name == key {
				return "", nil
			}
			continue
		}
		rest, quoted := strings.CutPrefix(rest, "'")
		if !quoted {
			return "", fmt.Errorf("line %d: the value is not in single quotes", n)
		}
		begin, value := n, ""
		for {
			inside, behind, closed := strings.Cut(rest, "'")
			value += inside
			if closed {
				if behind = strings.TrimLeft(behind, " \t"); behind != "" && behind[0] != '#' {
					return "", fmt.Errorf("line %d: there is text after the value", n)
				}
				break
			}
			value += "\n"
			if !lines.Scan() {
				return "", fmt.Errorf("line %d: the quote is not closed", begin)
			}
			n++
			rest = lines.Text()
		}
		if name == key {
			return value, nil
		}
	}
	return "", lines.Err()
}

// Field returns a field of the pod for the downward API. It fails if the field is an address of
// the node, which has none yet.
func (in *Input) Field(fieldPath string) (string, error) {
	pod, ips := in.Pod, in.IPs
	if host := strings.HasPrefix(fieldPath, "status.hostIP"); host || pod.Spec.HostNetwork && strings.HasPrefix(fieldPath, "status.podIP") {
		if ips = in.Node.IPs; len(ips) == 0 {
			return "", fmt.Errorf("%s: the node has no address yet", fieldPath)
		}
	}
	switch fieldPath {
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.hostIP", "status.podIP":
		return cmp.Or(ips...), nil
	case "status.hostIPs", "status.podIPs":
		return strings.Join(ips, ","), nil
	}
	return fieldpath.ExtractFieldPathAsString(pod, fieldPath)
}

// Resource returns a container's request or limit in units of the divisor, rounded up. The
// default of a container without a limit is the limit of the pod as a whole, or else the node's
// allocatable amount.
func (in *Input) Resource(c *v1.Container, ref *v1.ResourceFieldSelector) (string, error) {
	if ref.ContainerName != "" {
		if c = podsync.ContainerOf(&in.Pod.Spec, ref.ContainerName); c == nil {
			return "", fmt.Errorf("pod has no container %s", ref.ContainerName)
		}
	}
	limited := *c
	limited.Resources.Limits = v1.ResourceList{}
	maps.Copy(limited.Resources.Limits, c.Resources.Limits)
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage} {
		if q := c.Resources.Limits[name]; !q.IsZero() {
			continue
		}
		limited.Resources.Limits[name] = in.Node.Allocatable[name]
		if all := in.Pod.Spec.Resources; all != nil {
			if q := all.Limits[name]; !q.IsZero() {
				limited.Resources.Limits[name] = q
			}
		}
	}
	return downward.ExtractContainerResourceValue(ref, &limited)
}
