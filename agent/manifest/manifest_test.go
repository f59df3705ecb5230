package manifest_test

import (
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/agent/manifest"
	v1 "k8s.io/api/core/v1"
)

var node = manifest.Options{NodeName: "n1"}

func read(t *testing.T, text string) []*v1.Pod {
	t.Helper()
	objects, warnings, err := manifest.Read("pod.yaml", []byte(text), node)
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	var pods []*v1.Pod
	for _, o := range objects {
		pods = append(pods, o.(*v1.Pod))
	}
	return pods
}

const web = `apiVersion: v1
kind: Pod
metadata:
  name: web
spec:
  containers:
  - name: app
    image: example.org/web
    ports: [{containerPort: 80, hostPort: 8080}]
    resources: {limits: {memory: 64Mi}}
`

// A pod gets Kubernetes' defaults.
func TestDefaults(t *testing.T) {
	pod := read(t, web)[0]
	c := pod.Spec.Containers[0]
	memory := c.Resources.Requests[v1.ResourceMemory]
	for _, check := range []struct{ what, got, want string }{
		{"namespace", pod.Namespace, "default"},
		{"restartPolicy", string(pod.Spec.RestartPolicy), "Always"},
		{"nodeName", pod.Spec.NodeName, "n1"},
		{"imagePullPolicy of a reference without tag", string(c.ImagePullPolicy), "Always"},
		{"protocol", string(c.Ports[0].Protocol), "TCP"},
		{"memory request", memory.String(), "64Mi"},
		{"file", pod.Annotations[manifest.AnnotationFile], "pod.yaml"},
		{"source", pod.Annotations[manifest.AnnotationSource], "file"},
		{"hash", pod.Annotations[manifest.AnnotationHash], string(pod.UID)},
	} {
		if check.got != check.want {
			t.Errorf("%s is %q, want %q", check.what, check.got, check.want)
		}
	}
	if got := *pod.Spec.TerminationGracePeriodSeconds; got != 30 {
		t.Errorf("grace is %d, want 30", got)
	}
	if pod.Spec.SecurityContext == nil {
		t.Error("no pod security context: CRI would share the PID namespace")
	}
}

func TestPullPolicy(t *testing.T) {
	for ref, want := range map[string]v1.PullPolicy{
		"web":                                   v1.PullAlways,
		"web:latest":                            v1.PullAlways,
		"localhost:5000/web":                    v1.PullAlways,
		"localhost:5000/web:1":                  v1.PullIfNotPresent,
		"web@sha256:" + strings.Repeat("0", 64): v1.PullIfNotPresent,

		// As in an API server, the tag decides even with a digest.
		"web:latest@sha256:" + strings.Repeat("0", 64):         v1.PullAlways,
		"web:1@sha256:" + strings.Repeat("0", 64):              v1.PullIfNotPresent,
		"localhost:5000/web@sha256:" + strings.Repeat("0", 64): v1.PullIfNotPresent,
	} {
		pod := read(t, strings.Replace(web, "example.org/web", ref, 1))[0]
		if got := pod.Spec.Containers[0].ImagePullPolicy; got != want {
			t.Errorf("%s: %s, want %s", ref, got, want)
		}
	}
}

// An edit changes a pod's UID; a comment, the layout and the file's name do not.
func TestUID(t *testing.T) {
	uid := read(t, web)[0].UID
	if got := read(t, "# mine\n---\n"+strings.ReplaceAll(web, "  - name: app", "  - name:   \"app\" # the app"))[0].UID; got != uid {
		t.Errorf("layout made another pod")
	}
	pods, _, err := manifest.Read("renamed.yaml", []byte(web), node)
	if err != nil || pods[0].GetUID() != uid {
		t.Errorf("another file name made another pod: %v", err)
	}
	if got := read(t, strings.Replace(web, "8080", "8081", 1))[0].UID; got == uid {
		t.Error("another port made no other pod")
	}
	pods, _, err = manifest.Read("pod.yaml", []byte(web), manifest.Options{NodeName: "n2"})
	if err != nil || pods[0].GetUID() == uid {
		t.Errorf("another node has the same UID: %v", err)
	}
}

func TestDocuments(t *testing.T) {
	second := strings.Replace(web, "name: web", "name: web2", 1)
	pods := read(t, "---\n# nothing\n---\n"+web+"---\n"+second+"---\n\n")
	if len(pods) != 2 || pods[0].Name != "web" || pods[1].Name != "web2" {
		t.Errorf("got %d pods", len(pods))
	}
	json := read(t, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"j","creationTimestamp":null},`+
		`"spec":{"containers":[{"name":"a","image":"i:1","resources":{}}]},"status":{}}`)
	if json[0].Name != "j" {
		t.Errorf("JSON: %s", json[0].Name)
	}
	if got := read(t, "# only a comment\n"); len(got) != 0 {
		t.Errorf("a comment made %d pods", len(got))
	}
}

// Some manifests look wrong but are valid in Kubernetes.
func TestAccepted(t *testing.T) {
	const head = "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec:\n"
	const ok = "  containers:\n  - name: a\n    image: i:1\n"
	for name, text := range map[string]string{
		"a search domain with an underscore": head + ok + "  dnsConfig: {searches: [_tcp.x.test, a_b.test, .]}\n",
		"no limit of a volume":               head + ok + "  volumes: [{name: v, emptyDir: {sizeLimit: 0}}]\n",
		"stdinOnce without stdin":            head + ok + "    stdinOnce: true\n",
		"SYS_ADMIN without escalation":       head + ok + "    securityContext: {allowPrivilegeEscalation: false, capabilities: {add: [SYS_ADMIN]}}\n",
	} {
		if _, _, err := manifest.Read("pod.yaml", []byte(text), manifest.Options{NodeName: "n1"}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Every error has file, line and field.
func TestErrors(t *testing.T) {
	const head = "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec:\n" // 4 lines
	const ok = "  containers:\n  - name: a\n    image: i:1\n"
	for _, test := range []struct{ name, text, want string }{
		{"unknown field", head + ok + "    imagee: j\n", "pod.yaml:8: spec.containers[0].imagee: unknown field"},
		{"hook without effect", head + ok + "    lifecycle: {postStart: {tcpSocket: {port: 1}}}\n", "pod.yaml:8: spec.containers[0].lifecycle.postStart.tcpSocket: does nothing: use exec, httpGet or sleep"},
		{"probe of an init container", head + ok + "  initContainers:\n  - {name: b, image: i, livenessProbe: {exec: {command: [a]}}}\n", "pod.yaml:9: spec.initContainers[0].livenessProbe: an init container cannot have it unless its restartPolicy is Always"},
		{"volume source", head + ok + "  volumes:\n  - name: v\n    nfs: {server: s, path: /}\n", "pod.yaml:10: spec.volumes[0].nfs: not supported: mount it and use hostPath"},
		{"two volume sources", head + ok + "  volumes:\n  - name: v\n    emptyDir: {}\n    configMap: {name: c}\n", "pod.yaml:9: spec.volumes[0]: has 2 sources: emptyDir, configMap"},
		{"path out of a volume", head + ok + "    volumeMounts: [{name: v, mountPath: /v, subPath: a/../../b}]\n  volumes: [{name: v}]\n", "pod.yaml:8: spec.containers[0].volumeMounts[0].subPath: \"a/../../b\": must not contain .."},
		{"token", head + ok + "  volumes:\n  - name: v\n    projected: {sources: [{serviceAccountToken: {path: t}}]}\n", "pod.yaml:10: spec.volumes[0].projected.sources[0].serviceAccountToken: needs an API server that issues tokens"},
		{"with a reason", head + ok + "  resourceClaims: [{name: c}]\n", "pod.yaml:8: spec.resourceClaims: needs device claims, which crisp does not have"},
		{"status", head + ok + "status: {phase: Running}\n", "pod.yaml:8: status: the agent writes it"},
		{"second document", web + "---\n" + head + ok + "    lifecycle: {preStop: {sleep: {seconds: -1}}}\n", "pod.yaml:19: spec.containers[0].lifecycle.preStop.sleep.seconds: -1 is not between 0 and terminationGracePeriodSeconds, 30"},
		{"set twice", head + ok + "    image: j\n", "pod.yaml:8: spec.containers[0].image: is set twice"},
		{"boolean for string", head + ok + "    env: [{name: A, value: true}]\n", "pod.yaml:8: spec.containers[0].env[0].value: want a string, got the boolean true: quote it"},
		{"YAML 1.1 boolean for string", head + ok + "    env: [{name: A, value: yes}]\n", "pod.yaml:8: spec.containers[0].env[0].value: want a string, got the boolean yes: quote it"},
		{"string for number", head + ok + "    ports: [{containerPort: http}]\n", "pod.yaml:8: spec.containers[0].ports[0].containerPort: want a whole number, got the string http"},
		{"mapping for list", head + "  containers: {name: a}\n", "pod.yaml:5: spec.containers: want a list, got a mapping"},
		{"quantity", head + ok + "    resources: {limits: {memory: lots}}\n", `pod.yaml:8: spec.containers[0].resources.limits[memory]: "lots" is not a quantity such as 500m, 1.5 or 64Mi`},
		{"indentation", head + "  containers:\n - name: a\n", "pod.yaml:6: did not find expected key: is it indented as what it belongs to?"},
		{"indentation, in the second document", web + "---\n" + head + ok + "    env:\n    - {name: A}\n   ports: []\n  restartPolicy: Never\n", "pod.yaml:21: did not find expected key: is it indented as what it belongs to?"},
		{"tab", head + "  containers:\n\t- name: a\n", "pod.yaml:6: a tab: YAML wants spaces"},
		{"kind", "apiVersion: apps/v1\nkind: ReplicaSet\n", "pod.yaml:2: kind: ReplicaSet is not supported: use a Deployment"},
		{"no kind", "a: b\n", "pod.yaml:1: kind: is missing"},
		{"scalar", "hello\n", "pod.yaml:1: not a Kubernetes object: apiVersion and kind are missing"},
		{"no name", strings.Replace(head+ok, "{name: x}", "{namespace: z}", 1), "pod.yaml:3: metadata.name: is missing"},
		{"no containers", head + "  hostNetwork: true\n", "pod.yaml:4: spec.containers: a pod needs at least one container"},
		{"same name twice", head + ok + "  - {name: a, image: j}\n", `pod.yaml:8: spec.containers[1].name: "a" is the name of spec.containers[0] too`},
		{"host port twice", head + ok + "    ports:\n    - {containerPort: 80, hostPort: 80}\n    - {containerPort: 81, hostPort: 80}\n", "pod.yaml:10: spec.containers[0].ports[1].hostPort: 80 is taken by spec.containers[0].ports[0]"},
		{"no such volume", head + ok + "    volumeMounts: [{name: v, mountPath: /v}]\n", `pod.yaml:8: spec.containers[0].volumeMounts[0].name: the pod has no volume "v"`},
		{"dots in a host path", head + ok + "  volumes: [{name: v, hostPath: {path: /a/../b}}]\n", `pod.yaml:8: spec.volumes[0].hostPath.path: "/a/../b": must not contain ..`},
		{"enumeration", head + ok + "  restartPolicy: Sometimes\n", `pod.yaml:8: spec.restartPolicy: "Sometimes": want Always, OnFailure, Never`},
		{"request above limit", head + ok + "    resources:\n      limits: {cpu: 1}\n      requests: {cpu: 2}\n", "pod.yaml:10: spec.containers[0].resources.requests[cpu]: 2 is more than the limit 1"},
		{"other node", head + ok + "  nodeName: n2\n", `pod.yaml:8: spec.nodeName: "n2" is another node: this one is "n1"`},
		{"user namespace", head + ok + "  hostUsers: false\n  hostPID: true\n", "pod.yaml:8: spec.hostUsers: false excludes hostNetwork, hostPID and hostIPC"},
		{"priority class", head + ok + "  priorityClassName: mine\n", "pod.yaml:8: spec.priorityClassName: \"mine\": there are no PriorityClass objects: set spec.priority too"},
		{"pod twice", web + "---\n" + web, "pod.yaml:12: metadata.name: pod default/web is already defined at line 1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			pods, _, err := manifest.Read("pod.yaml", []byte(test.text), node)
			if err == nil {
				t.Fatal("no error")
			}
			if err.Error() != test.want {
				t.Errorf("got  %v\nwant %s", err, test.want)
			}
			if len(pods) > 0 {
				t.Error("pods of a broken file were returned")
			}
		})
	}
}

// A project's manifests run though they also have what means nothing on one node: that is left out,
// with a warning each, also within a List. A kind that runs pods, or keeps data, is not.
func TestKindsThatAreLeftOut(t *testing.T) {
	text := "kind: Ingress\n---\n" + web + "---\nkind: List\nitems:\n- kind: ClusterRoleBinding\n- kind: HorizontalPodAutoscaler\n- kind: StorageClass\n"
	objects, warnings, err := manifest.Read("app.yaml", []byte(text), node)
	if err != nil || len(objects) != 1 || objects[0].GetName() != "web" {
		t.Errorf("%v, %v", objects, err)
	}
	want := "app.yaml:1: kind: Ingress is left out: nothing routes HTTP here; hostPort publishes a port\n" +
		"app.yaml:16: items[0].kind: ClusterRoleBinding is left out: pods have no API server to be let in to\n" +
		"app.yaml:17: items[1].kind: HorizontalPodAutoscaler is left out: a single node is not scaled\n" +
		"app.yaml:18: items[2].kind: StorageClass is left out: every claim is a directory of this node"
	if got := warnings.Error(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for _, kind := range []string{"ReplicaSet", "PersistentVolume", "Foo"} {
		if _, _, err := manifest.Read("app.yaml", []byte(web+"---\nkind: "+kind+"\n"), node); err == nil {
			t.Errorf("%s is left out", kind)
		}
	}
}

// A reference to a label must be a valid label name. One to an annotation may have capitals before
// the slash.
func TestReferencesToKeys(t *testing.T) {
	for ref, want := range map[string]string{
		"metadata.labels['example.org/X']":      "",
		"metadata.annotations['Example.org/x']": "",
		"metadata.labels['Example.org/x']":      `pod.yaml:9: spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: "Example.org/x": prefix part `,
		"metadata.annotations['a b']":           `pod.yaml:9: spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: "a b": name part `,
	} {
		env := "    env: [{name: A, valueFrom: {fieldRef: {fieldPath: \"" + ref + "\"}}}]\n    ports"
		_, _, err := manifest.Read("pod.yaml", []byte(strings.Replace(web, "    ports", env, 1)), node)
		if (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", ref, err, want)
		}
	}
}

// All errors are reported at once, in the order of lines.
func TestSeveralErrors(t *testing.T) {
	_, _, err := manifest.Read("pod.yaml", []byte(strings.Replace(web, "    ports", "    foo: 1\n    bar: 2\n    ports", 1)), node)
	want := "pod.yaml:9: spec.containers[0].foo: unknown field\npod.yaml:10: spec.containers[0].bar: unknown field"
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}
