package kubelet

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// compare returns a line for each difference between two records of a pod: calls that only one
// driver made, the order of calls, and their requests.
//
//	POD CreateContainer main#0 config.tty: kubelet true, agent absent
func compare(pod string, kubelet, agent *record) []string {
	var lines []string
	report := func(what, a, b string) {
		lines = append(lines, fmt.Sprintf("%s %s: kubelet %s, agent %s", pod, what, a, b))
	}
	ours, theirs := byName(agent.steps), byName(kubelet.steps)
	names := map[string]bool{}
	for name := range theirs {
		names[name] = true
	}
	for name := range ours {
		names[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		a, b := theirs[name], ours[name]
		if len(a) == 0 || len(b) == 0 {
			report(name, called(a), called(b))
			continue
		}
		// An identical call repeated counts once; other calls on the same object count separately.
		for i := range max(len(a), len(b)) {
			if i >= len(a) || i >= len(b) {
				report(fmt.Sprintf("%s the %dth", name, i+1), called(a[min(i, len(a)):]), called(b[min(i, len(b)):]))
				break
			}
			differ("", a[i], b[i], func(path, a, b string) { report(name+" "+path, a, b) })
		}
	}
	for _, of := range orders {
		for _, pod := range []string{"", "new."} { // a pod, and its replacement
			if a, b := order(kubelet.steps, ours, of.methods, pod), order(agent.steps, theirs, of.methods, pod); a != b {
				report("order of "+pod+of.what, a, b)
			}
		}
	}
	differ("", kubelet.status, agent.status, func(path, a, b string) { report("status "+path, a, b) })
	differ("", kubelet.later, agent.later, func(path, a, b string) { report("later status "+path, a, b) })
	return lines
}

func called(requests []any) string {
	if len(requests) == 0 {
		return "never"
	}
	return "calls it"
}

// byName groups the distinct requests by call and object.
func byName(steps []step) map[string][]any {
	groups := map[string][]any{}
	for _, s := range steps {
		same := func(v any) bool { return text(v) == text(s.request) }
		if !slices.ContainsFunc(groups[s.name], same) {
			groups[s.name] = append(groups[s.name], s.request)
		}
	}
	for name, requests := range groups {
		if strings.HasPrefix(name, "ExecSync ") { // the order of a container's probes is random
			slices.SortFunc(requests, func(a, b any) int { return strings.Compare(text(a), text(b)) })
		}
	}
	return groups
}

// orders has the groups of calls whose order is compared, separately. Removals are garbage
// collection, and probes and hooks have their own timing.
var orders = []struct {
	what    string
	methods []string
}{
	{"starts", []string{"RunPodSandbox", "PullImage", "CreateContainer", "StartContainer"}},
	{"stops", []string{"StopContainer", "StopPodSandbox"}},
}

// order returns the order in which these methods were first called for objects of the pod, without
// calls that the other record lacks. Containers that were stopped concurrently are one element.
func order(steps []step, other map[string][]any, methods []string, pod string) string {
	var parts []string
	var run []string // overlapping steps
	var until step
	flush := func() {
		slices.Sort(run)
		if len(run) > 0 {
			parts = append(parts, strings.Join(run, " + "))
		}
		run = nil
	}
	seen := map[string]bool{}
	for _, s := range steps {
		method, object, _ := strings.Cut(s.name, " ")
		if seen[s.name] || len(other[s.name]) == 0 || !slices.Contains(methods, method) || strings.HasPrefix(object, "new.") != (pod != "") {
			continue
		}
		seen[s.name] = true
		if method != "StopContainer" || len(run) == 0 || s.begin.After(until.end) {
			flush()
		}
		run = append(run, s.name)
		if method != "StopContainer" {
			flush()
		} else if s.end.After(until.end) {
			until = s
		}
	}
	flush()
	return strings.Join(parts, ", ")
}

// differ reports where two values differ. Lists of named elements are compared by name, and their
// order separately.
func differ(path string, a, b any, report func(path, a, b string)) {
	switch x := a.(type) {
	case map[string]any:
		if y, ok := b.(map[string]any); ok {
			differMaps(path, x, y, report)
			return
		}
	case []any:
		if y, ok := b.([]any); ok {
			differLists(path, x, y, report)
			return
		}
	}
	if x, y := text(a), text(b); x != y {
		report(path, x, y)
	}
}

func differMaps(path string, a, b map[string]any, report func(path, a, b string)) {
	keys := map[string]bool{}
	for k := range a {
		keys[k] = true
	}
	for k := range b {
		keys[k] = true
	}
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		at := k
		if path != "" {
			at = path + "." + k
		}
		differ(at, a[k], b[k], report)
	}
}

func differLists(path string, a, b []any, report func(path, a, b string)) {
	x, xs := named(a)
	y, ys := named(b)
	if x == nil || y == nil {
		if s, t := text(a), text(b); s != t {
			report(path, s, t)
		}
		return
	}
	for _, name := range slices.Sorted(maps.Keys(x)) {
		differ(path+"["+name+"]", x[name], y[name], report)
	}
	for _, name := range slices.Sorted(maps.Keys(y)) {
		if _, ok := x[name]; !ok {
			report(path+"["+name+"]", text(nil), text(y[name]))
		}
	}
	in := func(m map[string]any) func(string) bool {
		return func(name string) bool { _, ok := m[name]; return !ok }
	}
	xs, ys = slices.DeleteFunc(xs, in(y)), slices.DeleteFunc(ys, in(x))
	if !slices.Equal(xs, ys) {
		report(path+" order", strings.Join(xs, " "), strings.Join(ys, " "))
	}
}

// named indexes a list by the names of its elements; nil if they have none.
func named(list []any) (map[string]any, []string) {
	m := map[string]any{}
	var names []string
	for _, e := range list {
		o, ok := e.(map[string]any)
		if !ok {
			return nil, nil
		}
		name := ""
		for _, key := range []string{"container_path", "key", "name", "container_port", "page_size"} {
			if s, ok := o[key]; ok && name == "" {
				name = strings.Trim(text(s), `"`)
			}
		}
		if _, twice := m[name]; name == "" || twice {
			return nil, nil
		}
		m[name], names = e, append(names, name)
	}
	return m, names
}

func text(v any) string {
	if v == nil {
		return "absent"
	}
	data, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(data)
}
