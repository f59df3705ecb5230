package podspec

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// A container that needs the node's address is not started without one: it waits until the
// node has an address.
func TestNodeWithoutAddress(t *testing.T) {
	for _, test := range []struct{ field, spec, want string }{
		{"status.hostIP", "", "192.0.2.1"},
		{"status.hostIPs", "", "192.0.2.1,2001:db8::1"},
		{"status.podIP", "  hostNetwork: true\n", "192.0.2.1"},
		{"status.podIPs", "  hostNetwork: true\n", "192.0.2.1,2001:db8::1"},
	} {
		in := input(t, "  containers: [{name: a, image: i, env: [{name: IP, valueFrom: {fieldRef: {fieldPath: "+test.field+"}}}]}]\n"+test.spec)
		c := &in.Pod.Spec.Containers[0]
		in.Node.IPs, in.IPs = nil, nil
		if env, err := in.Environment(c, References{}); err == nil || !strings.Contains(err.Error(), "env IP: "+test.field+": the node has no address yet") {
			t.Errorf("%s without an address: %v, %v", test.field, env, err)
		}
		in.Node.IPs = []string{"192.0.2.1", "2001:db8::1"}
		if env, err := in.Environment(c, References{}); err != nil || string(env[0].Value) != test.want {
			t.Errorf("%s: %v, %v", test.field, env, err)
		}
	}
}

// The environment has the variables of all sources, in the order of the manifest.
func TestEnvironment(t *testing.T) {
	refs := References{
		ConfigMaps: map[string]*v1.ConfigMap{"c": {Data: map[string]string{"a": "1", "b": "2"}, BinaryData: map[string][]byte{"bin": {0xff}}}},
		Secrets:    map[string]*v1.Secret{"s": {Data: map[string][]byte{"password": []byte("geheim"), "a": []byte("s")}}},
	}
	for _, test := range []struct{ name, container, want, err string }{
		{"values", `env: [{name: A, value: x}, {name: B, value: "$(A)-$$(A)-$(NONE)-$"}]`, "A=x B=x-$(A)-$(NONE)-$", ""},
		{"twice", `env: [{name: A, value: x}, {name: A, value: "$(A)y"}]`, "A=xy", ""},
		{"all of a config map", `envFrom: [{configMapRef: {name: c}}]`, "a=1 b=2", ""},
		{"with a prefix, and the later wins", `envFrom: [{configMapRef: {name: c}, prefix: P_}, {secretRef: {name: s}, prefix: P_}]`, "P_b=2 P_a=s P_password=geheim", ""},
		{"env wins over envFrom and sees it", `envFrom: [{secretRef: {name: s}}]
    env: [{name: a, value: "$(password)!"}]`, "password=geheim a=geheim!", ""},
		{"keys", `env: [{name: A, valueFrom: {configMapKeyRef: {name: c, key: a}}}, {name: B, valueFrom: {secretKeyRef: {name: s, key: password}}}]`, "A=1 B=geheim", ""},
		{"missing map", `env: [{name: A, valueFrom: {configMapKeyRef: {name: none, key: a}}}]`, "", "env A: there is no configmap default/none"},
		{"missing key", `env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: none}}}]`, "", "env A: there is no key none in secret default/s"},
		{"missing and optional", `env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: none, optional: true}}}, {name: B, valueFrom: {configMapKeyRef: {name: none, key: a, optional: true}}}]
    envFrom: [{secretRef: {name: none, optional: true}}]`, "", ""},
		{"missing envFrom", `envFrom: [{secretRef: {name: none}}]`, "", "there is no secret default/none"},
		{"fields", `env: [{name: A, valueFrom: {fieldRef: {fieldPath: "metadata.labels['app']"}}}, {name: B, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]`, "A=w B=10.0.0.2", ""},
		{"resources", `resources: {limits: {cpu: 1500m, memory: 64Mi}}
    env: [{name: A, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}, {name: B, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1m}}}, {name: C, valueFrom: {resourceFieldRef: {resource: requests.memory, divisor: 1Mi}}}]`, "A=2 B=1500 C=64", ""},
		{"limits that are not set", `resources: {limits: {cpu: 0}}
    env: [{name: A, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 1Gi}}}, {name: B, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1m}}}, {name: C, valueFrom: {resourceFieldRef: {resource: limits.ephemeral-storage, divisor: 1Gi}}}]`, "A=14 B=1750 C=90", ""},
		{"what is not set and no limit", `env: [{name: A, valueFrom: {resourceFieldRef: {resource: requests.memory}}}, {name: B, valueFrom: {resourceFieldRef: {resource: limits.hugepages-2Mi}}}]`, "A=0 B=0", ""},
		{"limits of the pod as a whole", `resources: {limits: {cpu: 250m}}
    env: [{name: A, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 1Mi}}}, {name: B, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1m}}}, {name: C, valueFrom: {resourceFieldRef: {resource: limits.ephemeral-storage, divisor: 1Gi}}}]
  resources: {limits: {cpu: 500m, memory: 96Mi}}`, "A=96 B=250 C=90", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			in := input(t, "  containers:\n  - name: a\n    image: i:1\n    "+test.container+"\n")
			env, err := in.Environment(&in.Pod.Spec.Containers[0], refs)
			var words []string
			for _, kv := range env {
				words = append(words, kv.Key+"="+string(kv.Value))
			}
			text := ""
			if err != nil {
				text = err.Error()
			}
			if got := strings.Join(words, " "); got != test.want || text != test.err {
				t.Errorf("got %q, %q; want %q, %q", got, text, test.want, test.err)
			}
		})
	}
}
