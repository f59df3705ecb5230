package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// A kubectl sends the same requests to the agent as kubectl does, with the kubeconfig that the
// agent has written.
type kubectl struct {
	t      *testing.T
	server string
	token  string
	client *http.Client
}

func (n *node) kubectl(address string) *kubectl {
	n.t.Helper()
	var config struct {
		Clusters []struct {
			Cluster struct {
				Server string `json:"server"`
				CA     []byte `json:"certificate-authority-data"`
			} `json:"cluster"`
		} `json:"clusters"`
		Users []struct {
			User struct {
				Token string `json:"token"`
			} `json:"user"`
		} `json:"users"`
	}
	data, err := os.ReadFile(filepath.Join(n.dir, "agent", "kubeconfig"))
	if err == nil {
		err = yaml.Unmarshal(data, &config)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(config.Clusters[0].Cluster.CA) || config.Clusters[0].Cluster.Server != "https://"+address {
		n.t.Fatalf("kubeconfig: %s", data)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	n.t.Cleanup(transport.CloseIdleConnections)
	return &kubectl{n.t, "https://" + address, config.Users[0].User.Token, &http.Client{Transport: transport}}
}

// The Accept headers of kubectl.
const (
	acceptTable     = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"
	acceptDiscovery = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json"
	acceptProtobuf  = "application/vnd.kubernetes.protobuf,application/json"
)

// open sends a request. The caller reads the response.
func (k *kubectl) open(ctx context.Context, method, path, accept, contentType string, body []byte) *http.Response {
	k.t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, k.server+path, bytes.NewReader(body))
	if err != nil {
		k.t.Fatal(err)
	}
	req.Header.Set("Accept", accept)
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	req.Header.Set("Authorization", "Bearer "+k.token)
	resp, err := k.client.Do(req)
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// send sends a request and decodes the response.
func (k *kubectl) send(code int, method, path, accept, contentType, body string) map[string]any {
	k.t.Helper()
	resp := k.open(k.t.Context(), method, path, accept, contentType, []byte(body))
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		k.t.Fatal(err)
	}
	if resp.StatusCode != code || resp.Header.Get("Content-Type") != "application/json" {
		k.t.Fatalf("%s %s: %d %s, want %d: %s", method, path, resp.StatusCode, resp.Header.Get("Content-Type"), code, data)
	}
	var m map[string]any
	if err := json.Unmarshal(data, &m); err != nil {
		k.t.Fatalf("%s %s: %v: %s", method, path, err, data)
	}
	return m
}

func (k *kubectl) get(path string) map[string]any {
	k.t.Helper()
	return k.send(200, "GET", path, "application/json", "", "")
}

// dig returns the value at a path of names and indices, such as "items|0|kind".
func dig(v any, path string) string {
	for name := range strings.SplitSeq(path, "|") {
		switch of := v.(type) {
		case map[string]any:
			v = of[name]
		case []any:
			i := 0
			if _, err := fmt.Sscan(name, &i); err != nil || i >= len(of) {
				return "<none>"
			}
			v = of[i]
		default:
			return "<none>"
		}
	}
	return fmt.Sprint(v)
}

func (k *kubectl) want(m map[string]any, path, want string) {
	k.t.Helper()
	if got := dig(m, path); got != want {
		k.t.Errorf("%s is %q, want %q", path, got, want)
	}
}

// The agent serves the requests behind kubectl's commands: get, both kinds of apply, create, edit,
// patch, scale, wait, delete, top.
func TestKubectl(t *testing.T) {
	inRealTime(t)
	n := newNode(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	n.flags = []string{"--listen", address}
	n.manifest("web.yaml", webPod)
	n.agent()
	n.until("get pods", `web +2/2 `)
	k := n.kubectl(address)

	// A token is required; TLS is not.
	for token, code := range map[string]int{"": 401, "no": 401, k.token: 200} {
		req, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+address+"/api", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil || resp.StatusCode != code {
			t.Fatalf("token %q: %v, %v; want %d", token, resp, err, code)
		}
		resp.Body.Close()
	}

	// Discovery.
	k.want(k.send(200, "GET", "/api", acceptDiscovery, "", ""), "versions|0", "v1")
	k.want(k.send(200, "GET", "/apis", acceptDiscovery, "", ""), "kind", "APIGroupList")
	if list := fmt.Sprint(k.get("/apis/apps/v1")); !strings.Contains(list, "deployments/scale") {
		t.Errorf("apps/v1 has %s", list)
	}
	k.want(k.get("/openapi/v3"), "paths|apis/apps/v1|serverRelativeURL", "/openapi/v3/apis/apps/v1")
	doc := k.get("/openapi/v3/api/v1")
	k.want(doc, "paths|/api/v1/namespaces/{namespace}/pods/{name}|patch|x-kubernetes-group-version-kind|kind", "Pod")
	if !strings.Contains(dig(doc, "paths|/api/v1/namespaces/{namespace}/pods/{name}|patch|parameters"), "fieldValidation") {
		t.Errorf("fields are not said to be checked: kubectl would ask for --validate=false")
	}
	k.want(k.send(201, "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "application/json", "application/json", `{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1","spec":{}}`), "status|allowed", "true")

	// get with a table, and its watch.
	const pods = "/api/v1/namespaces/default/pods"
	table := k.send(200, "GET", pods+"?limit=500", acceptTable, "", "")
	for path, want := range map[string]string{
		"kind": "Table", "columnDefinitions|0|name": "Name", "columnDefinitions|1|name": "Ready", "columnDefinitions|5|name": "IP", "columnDefinitions|5|priority": "1",
		"rows|0|cells|0": "web", "rows|0|cells|1": "2/2", "rows|0|cells|2": "Running", "rows|0|object|kind": "PartialObjectMetadata", "rows|0|object|metadata|name": "web",
	} {
		k.want(table, path, want)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	version := dig(table, "metadata|resourceVersion")
	events := json.NewDecoder(k.open(ctx, "GET", pods+"?watch=true&resourceVersion="+version, acceptTable, "", nil).Body)
	informer := json.NewDecoder(k.open(ctx, "GET", pods+"?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", "application/json", "", nil).Body)
	next := func(d *json.Decoder) map[string]any {
		t.Helper()
		var e map[string]any
		if err := d.Decode(&e); err != nil {
			t.Fatal(err)
		}
		return e
	}
	k.want(next(informer), "object|metadata|name", "web")
	end := next(informer)
	k.want(end, "type", "BOOKMARK")
	k.want(end, "object|metadata|annotations|k8s.io/initial-events-end", "true")

	// apply: it rejects unknown fields, and patches existing objects.
	pod := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"default","labels":{"a":"1"}},"spec":{"containers":[{"name":"c","image":"example.org/c:1"}]}}`
	k.want(k.send(404, "GET", pods+"/p", "application/json", "", ""), "reason", "NotFound")
	const client = "?fieldManager=kubectl-client-side-apply&fieldValidation=Strict"
	bad := k.send(422, "POST", pods+client, "application/json", "application/json", strings.Replace(pod, `"spec":{`, `"spec":{"frobs":1,`, 1))
	if !strings.Contains(dig(bad, "message"), "spec.frobs") {
		t.Errorf("unknown field: %v", bad)
	}
	k.want(k.send(201, "POST", pods+client, "application/json", "application/json", pod), "metadata|name", "p")
	e := next(events)
	for dig(e, "object|rows|0|cells|0") != "p" {
		e = next(events)
	}
	k.want(e, "type", "ADDED")
	n.until("get pods", `p +1/1 +Running +0 `)
	patched := k.send(200, "PATCH", pods+"/p"+client, "application/json", "application/strategic-merge-patch+json", `{"metadata":{"labels":{"b":"2"}}}`)
	k.want(patched, "metadata|labels|b", "2")
	patched = k.send(200, "PATCH", pods+"/p?fieldManager=kubectl-patch", "application/json", "application/json-patch+json", `[{"op":"remove","path":"/metadata/labels/a"},{"op":"replace","path":"/spec/containers/0/image","value":"example.org/c:2"}]`)
	k.want(patched, "metadata|labels|a", "<nil>")
	k.want(patched, "spec|containers|0|image", "example.org/c:2")
	n.until("get pods", `p +1/1 +Running +1 `)

	// edit and replace: a client with an old version must read again.
	old := dig(patched, "metadata|resourceVersion")
	k.send(200, "PATCH", pods+"/p", "application/json", "application/merge-patch+json", `{"metadata":{"labels":{"c":"3"}}}`)
	k.want(k.send(409, "PATCH", pods+"/p?fieldManager=kubectl-edit", "application/json", "application/strategic-merge-patch+json", `{"metadata":{"resourceVersion":"`+old+`","labels":{"d":"4"}}}`), "reason", "Conflict")
	n.await("the pod is replaced", func() bool { // or its status has changed since it was read
		now := k.get(pods + "/p")
		now["metadata"].(map[string]any)["labels"] = map[string]any{"e": "5"}
		text, err := json.Marshal(now)
		if err != nil {
			t.Fatal(err)
		}
		resp := k.open(t.Context(), "PUT", pods+"/p?fieldManager=kubectl-replace&fieldValidation=Strict", "application/json", "application/json", text)
		resp.Body.Close()
		if resp.StatusCode != 200 && resp.StatusCode != 409 {
			t.Fatalf("PUT: %s", resp.Status)
		}
		return resp.StatusCode == 200
	})
	k.want(k.get(pods+"/p"), "metadata|labels|e", "5")
	k.want(k.send(403, "PATCH", pods+"/web", "application/json", "application/merge-patch+json", `{}`), "reason", "Forbidden") // from a file

	// apply --server-side.
	const cm = "/api/v1/namespaces/default/configmaps/cm?fieldManager=kubectl&fieldValidation=Strict"
	const apply = "application/apply-patch+yaml"
	k.want(k.send(201, "PATCH", cm, "application/json", apply, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: cm}\ndata: {a: b, c: d}\n"), "data|a", "b")
	k.send(200, "PATCH", cm, "application/json", "application/merge-patch+json", `{"data":{"other":"1"}}`)
	after := k.send(200, "PATCH", cm, "application/json", apply, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: cm}\ndata: {a: x}\n")
	k.want(after, "data", "map[a:x other:1]")
	// The applied configuration of a Secret is nowhere in the output of describe.
	const secret = "/api/v1/namespaces/default/secrets/pw"
	k.send(201, "PATCH", secret+"?fieldManager=kubectl", "application/json", apply, "apiVersion: v1\nkind: Secret\nmetadata: {name: pw}\nstringData: {key: in-clear}\n")
	shown, err := json.Marshal(k.get(secret))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(shown), "in-clear") {
		t.Errorf("the Secret shows its value in clear: %s", shown)
	}
	k.want(k.send(200, "PATCH", secret+"?fieldManager=kubectl", "application/json", apply, "apiVersion: v1\nkind: Secret\nmetadata: {name: pw}\nstringData: {other: x}\n"), "data", "map[other:eA==]")

	// create sends protobuf.
	raw, err := (&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "made"}, Data: map[string]string{"k": "v"}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	wrapped, err := (&runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, Raw: raw}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	made := k.send(201, "POST", "/api/v1/namespaces/default/configmaps?fieldManager=kubectl-create&fieldValidation=Strict", acceptProtobuf, "application/vnd.kubernetes.protobuf", "k8s\x00"+string(wrapped))
	k.want(made, "data|k", "v")
	k.send(422, "POST", "/api/v1/namespaces/default/configmaps", acceptProtobuf, "application/vnd.kubernetes.protobuf", "nonsense")

	// A namespace exists once it is created, and also before.
	k.want(k.send(201, "POST", "/api/v1/namespaces", "application/json", "application/json", `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"team"}}`), "status|phase", "Active")
	k.want(k.get("/api/v1/namespaces/other"), "metadata|name", "other")
	k.want(doc, "paths|/api/v1/namespaces/{name}|patch|x-kubernetes-group-version-kind|kind", "Namespace")

	// scale, and the fields that rollout status and wait read.
	deployment := `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"},"spec":{"replicas":1,"selector":{"matchLabels":{"app":"d"}},"template":{"metadata":{"labels":{"app":"d"}},"spec":{"containers":[{"name":"c","image":"example.org/c:1"}]}}}}`
	const deployments = "/apis/apps/v1/namespaces/default/deployments"
	k.send(201, "POST", deployments, "application/json", "application/json", deployment)
	scale := k.get(deployments + "/d/scale")
	k.want(scale, "spec|replicas", "1")
	scale["spec"] = map[string]any{"replicas": 2}
	delete(scale["metadata"].(map[string]any), "resourceVersion") // its pods are starting
	text, err := json.Marshal(scale)
	if err != nil {
		t.Fatal(err)
	}
	k.want(k.send(200, "PUT", deployments+"/d/scale", "application/json", "application/json", string(text)), "spec|replicas", "2")
	k.want(k.send(200, "PATCH", deployments+"/d/scale?fieldManager=kubectl-scale", "application/json", "application/merge-patch+json", `{"spec":{"replicas":3}}`), "kind", "Scale")
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		d := k.get(deployments + "/d")
		if dig(d, "status|availableReplicas") == "3" && dig(d, "status|updatedReplicas") == "3" && dig(d, "status|observedGeneration") == dig(d, "metadata|generation") && dig(d, "status|conditions|0|status") == "True" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("not rolled out: %v", d["status"])
		}
	}

	// delete: with --dry-run=server the object stays.
	k.send(200, "DELETE", deployments+"/d", "application/json", "application/json", `{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Background","dryRun":["All"]}`)
	k.want(k.get(deployments+"/d"), "kind", "Deployment")
	k.send(200, "DELETE", deployments+"/d", "application/json", "application/json", `{"propagationPolicy":"Background"}`)
	k.send(404, "GET", deployments+"/d", "application/json", "", "")
	k.want(k.send(200, "DELETE", pods+"/p", "application/json", "application/json", `{"gracePeriodSeconds":0,"propagationPolicy":"Background"}`), "kind", "Pod")

	// top and get events.
	k.want(k.get("/apis/metrics.k8s.io/v1beta1/nodes"), "items|0|kind", "NodeMetrics")
	if memory := dig(k.get("/apis/metrics.k8s.io/v1beta1/nodes"), "items|0|usage|memory"); memory == "0" || memory == "<none>" {
		t.Errorf("the node uses %s of memory", memory)
	}
	list := k.send(200, "GET", "/api/v1/namespaces/default/events?limit=500", acceptTable, "", "")
	k.want(list, "columnDefinitions|0|name", "Last Seen")
	of := k.get("/api/v1/namespaces/default/events?fieldSelector=involvedObject.apiVersion%3Dv1,involvedObject.kind%3DPod,involvedObject.name%3Dweb")
	k.want(of, "items|0|involvedObject|name", "web")
	if !strings.Contains(fmt.Sprint(list["rows"]), "pod/web") {
		t.Errorf("events: %v", list["rows"])
	}
}

// withKubectl starts an agent and returns a function that runs the machine's kubectl with it.
func (n *node) withKubectl(instead string) func(args ...string) (string, error) {
	n.t.Helper()
	program, err := exec.LookPath("kubectl")
	if err != nil {
		n.t.Skipf("needs kubectl (%s): %v", instead, err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		n.t.Fatal(err)
	}
	n.flags = []string{"--listen", l.Addr().String()}
	l.Close()
	n.agent()
	n.until("status -o json", `"alive": true`)
	return func(args ...string) (string, error) {
		args = append([]string{"--kubeconfig", filepath.Join(n.dir, "agent", "kubeconfig"), "--cache-dir", filepath.Join(n.dir, "cache")}, args...)
		out, err := exec.CommandContext(n.t.Context(), program, args...).CombinedOutput()
		return string(out), err
	}
}

// The verbs that crisp leaves to kubectl work with its defaults: scale, set image, edit, and the
// pauses of a rollout.
func TestKubectlChanges(t *testing.T) {
	inRealTime(t)
	n := newNode(t)
	kubectl := n.withKubectl("TestKubectl makes most of its requests")
	n.expect(expectation{"apply -f " + n.file("web.yaml", `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: app, image: "example.org/c:1"}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: conf}
data: {tier: front}
`) + " --wait", 0, "created"})
	const images = "jsonpath={.items[*].spec.containers[0].image}"
	t.Setenv("KUBE_EDITOR", "sed -i s/front/back/")
	for _, step := range []struct {
		line, want string
		fails      bool
	}{
		{"scale deploy/web --replicas 2", "deployment.apps/web scaled", false},
		{"rollout status deploy/web --timeout 60s", "successfully rolled out", false},
		{"scale deploy/web --replicas 3 --current-replicas 1", "Expected replicas to be 1, was 2", true},
		{"set image deploy/web app=example.org/c:2", "deployment.apps/web image updated", false},
		{"rollout status deploy/web --timeout 60s", "successfully rolled out", false},
		{"get pods -l app=web -o " + images, "example.org/c:2 example.org/c:2", false},
		{"rollout pause deploy/web", "deployment.apps/web paused", false},
		{"rollout pause deploy/web", "is already paused", true},
		{"set image deploy/web app=example.org/c:3", "deployment.apps/web image updated", false},
		{"rollout restart deploy/web", "can't restart paused deployment", true},
		{"get pods -l app=web -o " + images, "example.org/c:2 example.org/c:2", false},
		{"rollout resume deploy/web", "deployment.apps/web resumed", false},
		{"rollout status deploy/web --timeout 60s", "successfully rolled out", false},
		{"get pods -l app=web --field-selector status.phase=Running -o " + images, "example.org/c:3 example.org/c:3", false},
		{"rollout restart deploy/web", "deployment.apps/web restarted", false},
		{"rollout status deploy/web --timeout 60s", "successfully rolled out", false},
		{"edit cm/conf", "configmap/conf edited", false},
		{"get cm/conf -o jsonpath={.data.tier}", "back", false},
	} {
		out, err := kubectl(strings.Fields(step.line)...)
		if (err != nil) != step.fails || !strings.Contains(out, step.want) {
			t.Fatalf("kubectl %s: %v, want %q:\n%s", step.line, err, step.want, out)
		}
	}
}

// kubectl explain works with the agent's schemas of Kubernetes' types.
func TestKubectlExplain(t *testing.T) {
	inRealTime(t)
	n := newNode(t)
	kubectl := n.withKubectl("apiserver/kubectl TestSchemas goes through the same document")
	for _, test := range []struct {
		what string
		want []string
	}{
		{"pod.spec.containers", []string{"KIND:       Pod", "FIELD: containers <[]Container>", "List of containers belonging to the pod.", "name\t<string> -required-", "livenessProbe\t<Probe>"}},
		{"deployment.spec.strategy.rollingUpdate.maxSurge", []string{"GROUP:      apps", "FIELD: maxSurge <IntOrString>", "above the desired number of"}},
		{"node.status.allocatable", []string{"FIELD: allocatable <map[string]Quantity>"}},
	} {
		out, err := kubectl("explain", test.what)
		if err != nil {
			t.Errorf("explain %s: %v\n%s", test.what, err, out)
		}
		for _, want := range test.want {
			if !strings.Contains(out, want) {
				t.Errorf("explain %s has no %q:\n%s", test.what, want, out)
			}
		}
	}
}
