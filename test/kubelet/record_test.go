package kubelet

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// A step is a call for a pod in normal form: the method and the object.
type step struct {
	name       string // "CreateContainer main#0"
	request    any    // decoded JSON in normal form
	begin, end time.Time
}

// A record has a driver's calls for one pod, and the pod's statuses.
type record struct {
	steps  []step
	status any // in normal form, when the pod had reached its state
	later  any // the same after its turn
	pod    *v1.Pod
}

// A message has the fields of a CRI request or response that identify its object.
type message struct {
	PodSandboxID string `json:"pod_sandbox_id"`
	ContainerID  string `json:"container_id"`
	Config       struct {
		Metadata struct {
			Name    string
			UID     string
			Attempt int
		}
	}
	SandboxConfig struct {
		Metadata struct{ Name string }
	} `json:"sandbox_config"`
	Image struct{ Image string }
}

// A session has all calls of a driver that runs the manifests.
type session struct {
	Driver string
	Dir    string               // the node's directory
	Calls  []call               // for all pods
	Pods   map[string]*v1.Pod   // when they had reached their states, by their names in the manifests
	Later  map[string]*v1.Pod   // after their turns
	Turned map[string]time.Time // when their manifests were replaced or restored
	Missed []string             // a line for each state that was not reached
}

// sessionOf makes a driver run the manifests. RECORDED=DIR stores the sessions there, named by
// prefix and driver, so that they can be compared without another run.
func sessionOf(t *testing.T, driver, prefix string, list []manifest) *session {
	t.Helper()
	dir := os.Getenv("RECORDED")
	path := filepath.Join(dir, prefix+driver+".json")
	if dir != "" {
		if data, err := os.ReadFile(path); err == nil {
			s := &session{}
			check(t, json.Unmarshal(data, s))
			return s
		}
	}
	s := drive(t, startNode(t, driver), list)
	if dir != "" {
		data, err := json.Marshal(s)
		check(t, err)
		check(t, os.WriteFile(path, data, 0o644))
	}
	return s
}

// recordsOf sorts the calls by pod.
func recordsOf(t *testing.T, n *session) map[string]*record {
	t.Helper()
	calls, pods := n.Calls, n.Pods
	records := map[string]*record{}
	// The IDs to replace are known only after all calls.
	l := labels{n: n, podOf: map[string]string{}, of: map[string]string{}, uids: map[string][]string{}, first: map[string]int{}}
	for _, c := range calls {
		l.add(t, c)
	}
	for _, c := range calls {
		var req message
		check(t, json.Unmarshal(c.Request, &req))
		pod, object := l.podOf[req.ContainerID], l.of[req.ContainerID]
		switch c.Method {
		case "RunPodSandbox", "CreateContainer":
			pod, object = l.made(c, &req)
		case "StopPodSandbox", "RemovePodSandbox", "UpdatePodSandboxResources":
			pod, object = l.podOf[req.PodSandboxID], l.of[req.PodSandboxID]
		case "PullImage":
			pod, object = strings.TrimSuffix(req.SandboxConfig.Metadata.Name, "-"+nodeName), req.Image.Image
		}
		if pod == "" {
			t.Errorf("%s: %s is of no pod: %s", n.Driver, c.Method, c.Request)
			continue
		}
		if records[pod] == nil {
			records[pod] = &record{}
		}
		records[pod].steps = append(records[pod].steps, step{c.Method + " " + object, c, c.Begin, c.End})
	}
	for name, pod := range pods {
		r := records[name]
		if r == nil {
			r = &record{} // expected of a pod that must not start at all
			records[name] = r
		}
		form := l.formOf(name)
		for i, s := range r.steps {
			c := s.request.(call)
			r.steps[i].request = form.value(t, c.Request)
			if c.Err != "" && c.Method != "ExecSync" { // a probe may time out on a busy machine
				r.steps[i].request.(map[string]any)["failed"] = true
			}
		}
		r.pod = pod
		text, err := json.Marshal(comparedStatus(pod.Status))
		check(t, err)
		r.status = form.value(t, text)
		if later := n.Later[name]; later != nil {
			text, err := json.Marshal(comparedStatus(later.Status))
			check(t, err)
			r.later = form.value(t, text)
		}
	}
	return records
}

// labels maps IDs to names that are the same in any two runs: "sandbox#0", "main#1" with their
// attempts. Names of a pod's replacement, or of a pod that came back, begin with "new.", and their
// attempts count from 0 whatever is left of the first pod.
type labels struct {
	n         *session
	podOf, of map[string]string   // by the ID of a sandbox or container
	uids      map[string][]string // by pod
	first     map[string]int      // the first attempt, by pod and name
}

// add adds the object that a call has made.
func (l *labels) add(t *testing.T, c call) {
	t.Helper()
	if c.Method != "RunPodSandbox" && c.Method != "CreateContainer" {
		return
	}
	var req, resp message
	check(t, json.Unmarshal(c.Request, &req))
	pod, label := l.made(c, &req)
	if uid := req.Config.Metadata.UID; uid != "" && !slices.Contains(l.uids[pod], uid) {
		l.uids[pod] = append(l.uids[pod], uid)
	}
	if c.Err != "" { // a failed call has no ID
		return
	}
	check(t, json.Unmarshal(c.Response, &resp))
	id := cmp.Or(resp.ContainerID, resp.PodSandboxID)
	l.podOf[id], l.of[id] = pod, label
}

// made returns the pod and the label of the object that a call makes.
func (l *labels) made(c call, req *message) (pod, label string) {
	meta, name, again := req.Config.Metadata, req.Config.Metadata.Name, ""
	if c.Method == "RunPodSandbox" {
		pod, name = strings.TrimSuffix(meta.Name, "-"+nodeName), "sandbox"
		if turned := l.n.Turned[pod]; !turned.IsZero() && c.Begin.After(turned) {
			again = "new."
		}
	} else {
		pod = l.podOf[req.PodSandboxID]
		if strings.HasPrefix(l.of[req.PodSandboxID], "new.") {
			again = "new."
		}
	}
	attempt := meta.Attempt
	if again != "" {
		if _, ok := l.first[pod+" "+name]; !ok {
			l.first[pod+" "+name] = attempt
		}
		attempt -= l.first[pod+" "+name]
	}
	return pod, fmt.Sprintf("%s%s#%d", again, name, attempt)
}

// A form replaces texts that differ between any two runs.
type form struct {
	exact  *strings.Replacer
	shaped []shape
}

type shape struct {
	is *regexp.Regexp
	as string
}

func (l *labels) formOf(pod string) form {
	pairs := []string{l.n.Dir, "DIR"}
	var ips []string
	for _, p := range []*v1.Pod{l.n.Pods[pod], l.n.Later[pod]} {
		if p == nil {
			continue
		}
		if p.UID != "" && !slices.Contains(l.uids[pod], string(p.UID)) { // it was listed but had no sandbox
			l.uids[pod] = append(l.uids[pod], string(p.UID))
		}
		for _, ip := range p.Status.PodIPs {
			ips = append(ips, ip.IP)
		}
	}
	slices.SortFunc(ips, func(a, b string) int { return len(b) - len(a) }) // longest first: one may be a prefix of another
	for _, ip := range ips {
		pairs = append(pairs, ip, "PODIP")
	}
	for i, uid := range l.uids[pod] {
		pairs = append(pairs, uid, strings.Repeat("NEW", i)+"UID")
	}
	for id, label := range l.of {
		pairs = append(pairs, id, label)
	}
	return form{strings.NewReplacer(append(pairs, "-"+nodeName, "")...), []shape{
		{regexp.MustCompile(`(/containers/[^/]+)/[0-9a-f]{8}$`), "$1/RANDOM"}, // file of a termination message
		{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)`), "TIME"},
		{regexp.MustCompile(`^[0-9a-f]{64}$|^[0-9a-f]{32}$`), "HASH"}, // shorter ones could be numbers: apply replaces those by field
	}}
}

func (f form) value(t *testing.T, text []byte) any {
	t.Helper()
	var v any
	check(t, json.Unmarshal(text, &v))
	return f.apply(v)
}

func (f form) apply(v any) any {
	switch v := v.(type) {
	case string:
		v = f.exact.Replace(v)
		for _, s := range f.shaped {
			v = s.is.ReplaceAllString(v, s.as)
		}
		return v
	case []any:
		for i := range v {
			v[i] = f.apply(v[i])
		}
	case map[string]any:
		// CRI has the value of an environment variable as bytes, which JSON encodes as base64.
		if value, ok := v["value"].(string); ok && len(v) == 2 && v["key"] != nil {
			if data, err := base64.StdEncoding.DecodeString(value); err == nil {
				v["value"] = string(data)
			}
		}
		for k := range v {
			v[k] = f.apply(v[k])
			if k == "io.kubernetes.container.hash" || k == "kubernetes.io/config.hash" || k == "kubernetes.io/config.seen" {
				v[k] = "HASH"
			}
		}
	}
	return v
}

// comparedStatus returns the parts of a status that must be equal, without times, IDs and addresses.
func comparedStatus(s v1.PodStatus) map[string]any {
	conditions := map[string]any{}
	for _, c := range s.Conditions {
		conditions[string(c.Type)] = map[string]any{"status": c.Status, "reason": c.Reason, "message": c.Message}
	}
	containers := map[string]any{}
	for _, c := range slices.Concat(s.InitContainerStatuses, s.ContainerStatuses) {
		containers[c.Name] = map[string]any{
			"state": stateOf(c.State), "last": stateOf(c.LastTerminationState), "ready": c.Ready,
			"started": c.Started, "restarts": c.RestartCount, "image": c.Image,
			"imageID": c.ImageID != "", "containerID": c.ContainerID != "", "allocated": c.AllocatedResources, "resources": c.Resources, "mounts": c.VolumeMounts, "user": c.User,
		}
	}
	return map[string]any{
		"phase": s.Phase, "reason": s.Reason, "message": s.Message, "qos": s.QOSClass, "conditions": conditions,
		"containers": containers, "podIPs": len(s.PodIPs), "hostIPs": len(s.HostIPs),
	}
}

func stateOf(s v1.ContainerState) map[string]any {
	switch {
	case s.Waiting != nil:
		return map[string]any{"waiting": s.Waiting.Reason}
	case s.Running != nil:
		return map[string]any{"running": true}
	case s.Terminated != nil:
		return map[string]any{"exitCode": s.Terminated.ExitCode, "reason": s.Terminated.Reason, "message": s.Terminated.Message}
	}
	return nil
}
