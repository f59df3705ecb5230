package manifest_test

import (
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/agent/manifest"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
)

// crisp rejects what Kubernetes rejects, and names the field: a misspelt policy that passes would
// silently have no effect. test/kubelet's TestSameVerdicts looks for more cases.
func TestRejectedAsByKubernetes(t *testing.T) {
	const (
		container = "spec.containers[0]."
		terms     = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
		secret    = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n"
		job       = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: NAME}\nspec: {template: {spec: {restartPolicy: Never, containers: [{name: a, image: i}]}}}\n"
	)
	required := func(term string) string {
		return "  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [" + term + "]}}}\n"
	}
	for _, test := range []struct{ text, want string }{
		// Lines of a pod's spec, and more lines of its container.
		{"    securityContext: {appArmorProfile: {type: Runtime}}\n", container + `securityContext.appArmorProfile.type: "Runtime": want RuntimeDefault, Unconfined, Localhost`},
		{"    securityContext: {appArmorProfile: {localhostProfile: a}}\n", container + "securityContext.appArmorProfile.type: is missing"},
		{"    securityContext: {appArmorProfile: {type: Localhost}}\n", container + "securityContext.appArmorProfile.localhostProfile: belongs to the type Localhost: set both or neither"},
		{"    securityContext: {appArmorProfile: {type: Localhost, localhostProfile: \" a\"}}\n", container + `securityContext.appArmorProfile.localhostProfile: " a" is not the name of a profile`},
		{"    securityContext: {seccompProfile: {type: RuntimeDefault, localhostProfile: \"\"}}\n", container + "securityContext.seccompProfile.localhostProfile: belongs to the type Localhost: set both or neither"},
		{"    securityContext: {procMount: \"\"}\n", container + `securityContext.procMount: "": want Default, Unmasked`},
		{"    volumeDevices: []\n    resources: {requests: {hugepages-2Mi: 2Mi, cpu: 1}}\n", container + "resources.requests[hugepages-2Mi]: 2Mi must be the limit too: huge pages cannot be overcommitted"},
		{"    resources: {limits: {hugepages-2Mi: 3Mi, cpu: 1}}\n", container + "resources.limits[hugepages-2Mi]: 3Mi is not a number of pages of 2Mi"},
		{"    resources: {limits: {hugepages-: 3Mi, cpu: 1}}\n", container + `resources.limits[hugepages-]: "hugepages-" names no size of huge pages`},
		{"    resources: {limits: {hugepages-2Mi: 4Mi}}\n", container + "resources: hugepages-2Mi needs cpu or memory beside it"},
		{"    resizePolicy: [{resourceName: cpu}]\n", container + "resizePolicy[0].restartPolicy: is missing"},
		{"    resizePolicy: [{resourceName: cpu, restartPolicy: RestartContainer}]\n  restartPolicy: Never\n", container + "resizePolicy[0].restartPolicy: RestartContainer restarts a container, which the pod's restartPolicy Never rules out"},
		{"    env: [{name: A, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1Mi}}}]\n", container + `env[0].valueFrom.resourceFieldRef.divisor: "1Mi": want 1, 1m`},
		{"    env: [{name: A, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 2Mi}}}]\n", container + `env[0].valueFrom.resourceFieldRef.divisor: "2Mi": want 1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei`},
		{"    lifecycle: {preStop: {sleep: {seconds: 31}}}\n", container + "lifecycle.preStop.sleep.seconds: 31 is not between 0 and terminationGracePeriodSeconds, 30"},
		{"  securityContext: {fsGroupChangePolicy: onRootMismatch}\n", `spec.securityContext.fsGroupChangePolicy: "onRootMismatch": want Always, OnRootMismatch`},
		{"  securityContext: {supplementalGroupsPolicy: strict}\n", `spec.securityContext.supplementalGroupsPolicy: "strict": want Merge, Strict`},
		{"  preemptionPolicy: never\n", `spec.preemptionPolicy: "never": want PreemptLowerPriority, Never`},
		{"  securityContext: {fsGroup: -1}\n", "spec.securityContext.fsGroup: -1 is not between 0 and 2147483647"},
		{"  securityContext: {supplementalGroups: [1, 2147483648]}\n", "spec.securityContext.supplementalGroups[1]: 2147483648 is not between 0 and 2147483647"},
		{"  securityContext: {sysctls: [{name: a.b, value: \"1\"}, {name: a.b, value: \"2\"}]}\n", "spec.securityContext.sysctls[1].name: a.b is set twice"},
		{"  securityContext: {sysctls: [{name: /a, value: \"1\"}]}\n", `spec.securityContext.sysctls[0].name: "/a" is not a sysctl`},
		{"  overhead: {nonsense: 1}\n", "spec.overhead[nonsense]: this node has no such resource"},
		{"    resources: {limits: {memory: 2Gi}}\n  resources: {limits: {memory: 1Gi}, requests: {memory: 1Gi}}\n",
			container + "resources.limits[memory]: 2Gi is more than the pod's limit 1Gi\nspec.resources.requests[memory]: 1Gi is less than the 2Gi of the containers"},
		{"  resources: {claims: [{name: c}]}\n", "spec.resources.claims: needs device claims, which crisp does not have"},
		{"  nodeSelector: {a b: c}\n", `spec.nodeSelector[a b]: "a b": name part must consist of`},
		{"  nodeSelector: {a: b c}\n", `spec.nodeSelector[a]: "b c": a valid label must be`},
		{"  priorityClassName: A_b\n  priority: 1\n", `spec.priorityClassName: "A_b": a lowercase RFC 1123 subdomain`},
		{"  initContainers: [{name: b, image: i, resizePolicy: [{resourceName: cpu, restartPolicy: RestartContainer}]}]\n", "spec.initContainers[0].resizePolicy[0].restartPolicy: RestartContainer is for a container that is restarted: set restartPolicy Always"},
		{"  hostnameOverride: web\n  setHostnameAsFQDN: true\n", "spec.hostnameOverride: excludes setHostnameAsFQDN"},
		{"  hostnameOverride: " + strings.Repeat("a.", 40) + "a\n", "spec.hostnameOverride: has 81 characters, more than 64"},
		{"  dnsConfig: {nameservers: [\"::ffff:1.2.3.4\"]}\n", `spec.dnsConfig.nameservers[0]: "::ffff:1.2.3.4" is not an IP address`},
		{"  volumes: [{name: v, nfs: {}}]\n", "spec.volumes[0].nfs: not supported: mount it and use hostPath"},
		{"  volumes: [{name: v, projected: {sources: [{configMap: {name: c}, secret: {name: s}}]}}]\n", "spec.volumes[0].projected.sources[0]: has 2 sources: secret, configMap"},
		{required("{matchExpressions: [{key: a, operator: is, values: [b]}]}"), terms + `[0].matchExpressions[0].operator: "is": want DoesNotExist, Exists, Gt, In, Lt, NotIn`},
		{required("{matchExpressions: [{key: a, operator: In}]}"), terms + "[0].matchExpressions[0].values: In wants at least one value"},
		{required("{matchExpressions: [{key: a, operator: Exists, values: [b]}]}"), terms + "[0].matchExpressions[0].values: Exists wants no values"},
		{required("{matchExpressions: [{key: a, operator: Gt, values: [\"1\", \"2\"]}]}"), terms + "[0].matchExpressions[0].values: Gt wants one value"},
		{required("{matchFields: [{key: metadata.uid, operator: In, values: [b]}]}"), terms + `[0].matchFields[0].key: "metadata.uid": want metadata.name`},
		{required(""), terms + ": is missing"},

		// Complete objects of other kinds.
		{strings.Replace(deployment, "    spec:\n", "    spec:\n      activeDeadlineSeconds: 5\n", 1), "spec.template.spec.activeDeadlineSeconds: not for pods that are to run for ever"},
		{strings.Replace(deployment, "  selector", "  revisionHistoryLimit: -1\n  selector", 1), "spec.revisionHistoryLimit: -1 is less than 0"},
		{strings.Replace(job, "NAME", strings.Repeat("a", 64), 1), `metadata.name: "` + strings.Repeat("a", 64) + `": must be no more than 63 bytes`},
		{strings.Replace(strings.Replace(job, "NAME", "example.org", 1), "{template", "{completionMode: Indexed, completions: 10, template", 1), `metadata.name: "example.org-9": must not contain dots`},
		{secret + "type: kubernetes.io/dockerconfigjson\nstringData: {.dockerconfigjson: nonsense}\n", "data[.dockerconfigjson]: is not a JSON object"},
		{secret + "type: kubernetes.io/basic-auth\n", "data: a secret of the type kubernetes.io/basic-auth needs the key username or password"},
		{secret + "type: kubernetes.io/ssh-auth\nstringData: {ssh-privatekey: \"\"}\n", "data: a secret of the type kubernetes.io/ssh-auth needs the key ssh-privatekey"},
		{"apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: r, namespace: prod}\nhandler: h\n", "metadata.namespace: a RuntimeClass is in no namespace"},
	} {
		text := test.text
		if !strings.HasPrefix(text, "apiVersion") {
			text = pod + text
		}
		_, _, err := manifest.Read("f", []byte(text), node)
		if err == nil {
			t.Errorf("%s\nis valid, want %s", test.text, test.want)
			continue
		}
		var got []string
		for line := range strings.Lines(err.Error()) {
			_, line, _ = strings.Cut(strings.TrimSpace(line), ": ")
			got = append(got, line)
		}
		if got := strings.Join(got, "\n"); !strings.HasPrefix(got, test.want) {
			t.Errorf("%s\ngot  %s\nwant %s", test.text, got, test.want)
		}
	}
}

// crisp validate does not know the node's name; it must not take it for "".
func TestNodeWithoutName(t *testing.T) {
	const text = pod + "  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [\"\"]}]}]}}}\n"
	if _, _, err := manifest.Read("f", []byte(text), manifest.Options{}); err == nil {
		t.Errorf("%s\nis valid", text)
	}
}

const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec:\n  containers:\n  - name: a\n    image: i\n"

// crisp accepts what Kubernetes accepts.
func TestAcceptedAsByKubernetes(t *testing.T) {
	for _, text := range []string{
		"    stdinOnce: true\n",
		"  terminationGracePeriodSeconds: -5\n",
		"  volumes: [{name: v, emptyDir: {sizeLimit: 0}}]\n",
		"  dnsConfig: {searches: [_tcp.example.org]}\n",
		"  imagePullSecrets: [{name: \"\"}, {}]\n",
	} {
		if _, _, err := manifest.Read("f", []byte(pod+text), node); err != nil {
			t.Errorf("%s\n%v", text, err)
		}
	}
	if got := *read(t, pod+"  terminationGracePeriodSeconds: -5\n")[0].Spec.TerminationGracePeriodSeconds; got != 1 {
		t.Errorf("a negative grace period becomes %d, want 1", got)
	}
	// The agent sets spec.nodeName to the host's name, which the manifest does not choose.
	fields := "  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [Web_01]}]}]}}}\n"
	for _, text := range []string{"", "  nodeName: Web_01\n", fields} {
		if _, _, err := manifest.Read("f", []byte(pod+text), manifest.Options{NodeName: "Web_01"}); err != nil {
			t.Errorf("%s\n%v", text, err)
		}
	}
	text := "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec: {selector: {}, completionMode: Indexed, template: {spec: {restartPolicy: Never, containers: [{name: a, image: i}]}}}\n"
	objects, _, err := manifest.Read("f", []byte(text), node)
	if err != nil {
		t.Fatal(err)
	}
	if c := objects[0].(*batchv1.Job).Spec.Completions; c == nil || *c != 1 {
		t.Errorf("completions %v, want 1", c)
	}
}

// Pod-level resources are completed as in Kubernetes: requests are those of the containers or, if
// none has one, the limits.
func TestDefaultsOfPodResources(t *testing.T) {
	p := read(t, pod+"    resources: {requests: {cpu: 1}, limits: {hugepages-2Mi: 4Mi}}\n  resources: {limits: {cpu: 4, memory: 1Gi}}\n")[0]
	for _, test := range []struct {
		list v1.ResourceList
		name v1.ResourceName
		want string
	}{
		{p.Spec.Resources.Requests, "cpu", "1"},
		{p.Spec.Resources.Requests, "memory", "1Gi"},
		{p.Spec.Resources.Limits, "hugepages-2Mi", "4Mi"},
		{p.Spec.Resources.Requests, "hugepages-2Mi", "4Mi"},
	} {
		if q := test.list[test.name]; q.String() != test.want {
			t.Errorf("%s is %s, want %s", test.name, q.String(), test.want)
		}
	}
	if r := read(t, pod+"  resources: {requests: {cpu: 4}}\n")[0].Spec.Resources; r.Limits != nil || len(r.Requests) != 1 {
		t.Errorf("without limits there are defaults: %v", r)
	}
}

// Errors about an untrusted manifest are printed on terminals, so keys and values must not contain
// control characters.
func TestErrorsAreOneLine(t *testing.T) {
	_, _, err := manifest.Read("f", []byte("apiVersion: v1\nkind: \"a\\nb\\e[2J\"\nmetadata: {name: x}\n"), node)
	if want := `f:2: kind: a\nb\x1b[2J is not a kind that crisp knows`; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
