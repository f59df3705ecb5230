package kubelet

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// A change sets or removes a value in a manifest. The steps of its path are keys and indices.
type change struct {
	path  []any
	value any
}

// gone is the value of a change that removes the value at its path.
type gone struct{}

// at returns the path as text.
func (c change) at() string {
	path := ""
	for _, step := range c.path {
		if key, ok := step.(string); ok {
			path += "." + key
		} else {
			path += fmt.Sprintf("[%v]", step)
		}
	}
	return path[1:]
}

func (c change) String() string {
	if _, ok := c.value.(gone); ok {
		return "without " + c.at()
	}
	text, err := json.Marshal(c.value)
	if err != nil {
		panic(err)
	}
	return c.at() + "=" + string(text)
}

// apply returns the tree with the change. The result shares unchanged parts.
func (c change) apply(tree any) any { return put(tree, c.path, c.value) }

func put(tree any, path []any, value any) any {
	if len(path) == 0 {
		return value
	}
	switch step := path[0].(type) {
	case string:
		m := map[string]any{}
		if old, ok := tree.(map[string]any); ok {
			m = maps.Clone(old)
		}
		if m[step] = put(m[step], path[1:], value); m[step] == (any)(gone{}) {
			delete(m, step)
		}
		return m
	default:
		list, _ := tree.([]any)
		list = slices.Clone(list)
		i := min(step.(int), len(list)) // an earlier change may have removed elements
		if i == len(list) {
			list = append(list, nil)
		}
		if list[i] = put(list[i], path[1:], value); list[i] == (any)(gone{}) {
			list = slices.Delete(list, i, i+1)
		}
		return list
	}
}

var kindTypes = map[string]reflect.Type{
	"Pod":                   reflect.TypeFor[v1.Pod](),
	"ConfigMap":             reflect.TypeFor[v1.ConfigMap](),
	"Secret":                reflect.TypeFor[v1.Secret](),
	"PersistentVolumeClaim": reflect.TypeFor[v1.PersistentVolumeClaim](),
	"RuntimeClass":          reflect.TypeFor[nodev1.RuntimeClass](),
	"Deployment":            reflect.TypeFor[appsv1.Deployment](),
	"DaemonSet":             reflect.TypeFor[appsv1.DaemonSet](),
	"Job":                   reflect.TypeFor[batchv1.Job](),
}

// A mutator collects the possible changes of a manifest from the tables.
type mutator struct{ list []change }

func changesOf(b *base) []change {
	var m mutator
	m.fields(kindTypes[b.kind], b.tree, nil, 0)
	return m.list
}

func (m *mutator) add(path []any, values ...any) {
	for _, value := range values {
		m.list = append(m.list, change{slices.Clone(path), value})
	}
}

// deepest is the number of missing parent fields that a change may create.
const deepest = 1

// walk adds changes of the value at path. node is the manifest's value, nil if it has none; missing
// is the number of parent fields that the manifest lacks.
func (m *mutator) walk(typ reflect.Type, node any, path []any, missing int) {
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	if node != nil {
		m.add(path, gone{})
	}
	switch typ {
	case reflect.TypeFor[resource.Quantity]():
		m.add(path, quantities...)
		return
	case reflect.TypeFor[intstr.IntOrString]():
		m.add(path, numbersOrNames...)
		return
	case reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.FieldsV1]():
		return
	}
	switch typ.Kind() {
	case reflect.Struct:
		m.add(path, map[string]any{})
		if missing <= deepest {
			m.fields(typ, node, path, missing)
		}
	case reflect.Slice:
		m.slice(typ.Elem(), node, path, missing)
	case reflect.Map:
		m.add(path, map[string]any{})
		m.mapping(typ, node, path)
	case reflect.Bool:
		m.add(path, true, false)
	case reflect.Int32, reflect.Int64:
		m.add(path, numbers...)
	case reflect.String:
		m.add(path, texts...)
		if typ.PkgPath() != "" {
			m.add(path, words...)
		}
	}
}

func (m *mutator) fields(typ reflect.Type, node any, path []any, missing int) {
	have, _ := node.(map[string]any)
	for i := range typ.NumField() {
		f := typ.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" {
			m.fields(f.Type, node, path, missing)
			continue
		}
		if name == "status" || name == "managedFields" {
			continue // no manifest has one
		}
		at := append(slices.Clone(path), name)
		if value := have[name]; value != nil {
			m.walk(f.Type, value, at, 0)
		} else {
			m.walk(f.Type, nil, at, missing+1)
		}
	}
}

func (m *mutator) slice(elem reflect.Type, node any, path []any, missing int) {
	if elem.Kind() == reflect.Uint8 {
		m.add(path, "", "!", "AAEC")
		return
	}
	m.add(path, []any{})
	list, _ := node.([]any)
	for i, value := range list {
		at := append(slices.Clone(path), i)
		m.walk(elem, value, at, 0)
		m.add(path, append(slices.Clone(list), value)) // a duplicate
	}
	m.walk(elem, nil, append(slices.Clone(path), len(list)), missing+1)
	if len(list) > 0 {
		many := slices.Clone(list)
		for len(many) < 40 {
			many = append(many, list[0])
		}
		m.add(path, many)
	}
}

func (m *mutator) mapping(typ reflect.Type, node any, path []any) {
	have, _ := node.(map[string]any)
	for _, key := range slices.Sorted(maps.Keys(have)) {
		at := append(slices.Clone(path), key)
		m.walk(typ.Elem(), have[key], at, 0)
	}
	if typ == reflect.TypeFor[v1.ResourceList]() {
		for _, name := range resources {
			at := append(slices.Clone(path), name)
			for _, q := range []any{"1", "3Mi", "-1", "0"} {
				m.add(at, q)
			}
		}
		return
	}
	for _, key := range keys {
		at := append(slices.Clone(path), key)
		if typ.Elem().Kind() == reflect.String {
			m.add(at, "value", "", "-a", "a b", strings.Repeat("a", 64))
		} else {
			m.add(at, "AAEC", "")
		}
	}
}

// Values at and beyond the limits of fields.
var (
	numbers = []any{-1, 0, 1, 2, 11, 100, 511, 512, 10001, 32767, 65535, 65536, 1000000000, 1000000001, 2147483647, int64(2147483648),
		int64(9223372036), int64(9223372037), int64(9223372036854775807), int64(-9223372036854775808)}
	quantities = []any{"0", "-1", "1", "1m", "100m", "500m", "1.5", "1n", "1k", "1Ki", "1M", "1Mi", "2Mi", "3Mi", "1G", "1Gi", "1T", "1Ti", "1P", "1Pi", "1E",
		"1Ei", "9223372036854775807", "1e30", "0.5", "nonsense", ""}
	numbersOrNames = []any{-1, 0, 1, 8080, 65535, 65536, "", "http", "nonsense", "a-name-of-16-chars", "50%", "0%", "100%", "101%", "-1%", "a%", "UPPER", "80"}
	texts          = []any{"", " ", "a", "nonsense", "UPPER", "a b", " a", "-a", "a-", "a_b", "a.b", "a..b", "a/b", "a//b", "../a", "a/../b", "/", "/a", "/a/../b", "/a/./b", "..",
		".", "..a", ".a", "a:b", "a=b", "a\nb", "a\x00b", "ä", "0", "1", "-1", "127.0.0.1", "010.0.0.1", "10.0.0.256", "::1", "::ffff:1.2.3.4", "fe80::1%eth0", "example.org", "Example.org/X",
		"example.org/x", "a.", "*", "*.a", "$(POD)", "$(X)/../a", "metadata.name", "metadata.labels", "metadata.labels['a']", "metadata.annotations['a b']",
		"status.podIP", "status.hostIP", "spec.nodeName", "limits.cpu", "limits.nonsense", "requests.hugepages-2Mi", "requests.memory", "limits.ephemeral-storage",
		"default", "linux", "windows", "SYS_ADMIN", "CAP_SYS_ADMIN", "kernel.shmmax", "net/ipv4/ip_forward", "cpu", "memory", "SIGKILL", "KILL",
		strings.Repeat("a", 16), strings.Repeat("a", 63), strings.Repeat("a", 64), strings.Repeat("a.", 126) + "a", strings.Repeat("a.", 126) + "aa", strings.Repeat("a", 4097)}
	words = []any{"Always", "always", "Never", "OnFailure", "IfNotPresent", "ClusterFirst", "None", "Default", "TCP", "tcp", "HTTP", "http", "File", "RuntimeDefault", "Localhost",
		"Unconfined", "Bidirectional", "Memory", "HugePages", "HugePages-2Mi", "HugePages-3Mi", "Enabled", "Disabled", "OnRootMismatch", "Strict", "Merge", "Recursive", "MountOption",
		"Block", "Filesystem", "ReadWriteOncePod", "Directory", "Restart", "RestartContainer", "In", "Exists", "Gt", "NoExecute", "NoSchedule", "Equal", "RollingUpdate", "Recreate", "OnDelete",
		"Indexed", "NonIndexed", "PreemptLowerPriority", "kubernetes.io/tls", "kubernetes.io/basic-auth", "kubernetes.io/dockercfg", "kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token"}
	keys = []string{"", "a", "a b", "a/b", "a/b/c", "-a", "UPPER", "example.org/a", "Example.org/A", "k8s.io/a", "kubernetes.io/a", "a.b", "..", ".", "..a", ".a", "ä",
		strings.Repeat("a", 63), strings.Repeat("a", 64), strings.Repeat("a", 254)}
	resources = []string{"cpu", "memory", "ephemeral-storage", "storage", "hugepages-2Mi", "hugepages-1Gi", "hugepages-3Mi", "hugepages-", "example.org/device", "nonsense", "a b", "pods", "limits.cpu", "requests.cpu"}
)
