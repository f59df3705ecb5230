package crix

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/crisp-cri/crisp/agent/manifest"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// environment is the container's, in the order of the manifest. A name that
// stands twice has its last value. A value may refer to names before it.
func (d *Driver) environment(pod *v1.Pod, c *v1.Container, ips []string) ([]*cri.KeyValue, error) {
	var env []*cri.KeyValue
	for _, e := range c.Env {
		value := expandVariables(e.Value, lookup(env))
		if e.ValueFrom != nil {
			var err error
			if value, err = d.fieldValue(pod, e.ValueFrom.FieldRef.FieldPath, ips); err != nil {
				return nil, fmt.Errorf("env %s: %w", e.Name, err)
			}
		}
		env = slices.DeleteFunc(env, func(kv *cri.KeyValue) bool { return kv.Key == e.Name })
		env = append(env, &cri.KeyValue{Key: e.Name, Value: []byte(value)})
	}
	return env, nil
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
	nodeIPs := make([]string, len(d.NodeIPs))
	for i, ip := range d.NodeIPs {
		nodeIPs[i] = ip.String()
	}
	if pod.Spec.HostNetwork {
		ips = nodeIPs
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
	case "status.hostIP":
		return first(nodeIPs), nil
	case "status.hostIPs":
		return strings.Join(nodeIPs, ","), nil
	case "status.podIP":
		return first(ips), nil
	case "status.podIPs":
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
