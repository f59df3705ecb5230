package manifest_test

import (
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/agent/manifest"
)

// Features that are on by default in Kubernetes 1.36 are honoured: variables from files, and
// rules that restart all containers, also those of sidecars. Alpha fields are rejected.
func TestYoungFields(t *testing.T) {
	const good = `apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  volumes: [{name: v, emptyDir: {}}, {name: c, configMap: {name: c}}]
  initContainers:
  - name: side
    image: i
    restartPolicy: Always
    restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: NotIn, values: [0]}}]
  containers:
  - name: a
    image: i
    env: [{name: A, valueFrom: {fileKeyRef: {volumeName: v, path: d/env, key: K}}}]
`
	for _, test := range []struct{ from, to, want string }{
		{"", "", ""},
		{"volumeName: v", "volumeName: x", "containers[0].env[0].valueFrom.fileKeyRef.volumeName: the pod has no volume \"x\""},
		{"volumeName: v", "volumeName: c", "fileKeyRef.volumeName: volume c is not an emptyDir"},
		{"path: d/env", "path: /env", "fileKeyRef.path: leads out of the volume"},
		{"path: d/env", "path: d/../../env", "fileKeyRef.path: leads out of the volume"},
		{"path: d/env, ", "", "fileKeyRef.path: is missing"},
		{"key: K", "key: ''", "fileKeyRef.key: is missing"},
		{"key: K", "key: 'K=1'", "fileKeyRef.key: "},
		{"{name: v, emptyDir: {}}", "{name: v, emptyDir: {mode: 448}}", "volumes[0].emptyDir.mode: alpha in Kubernetes 1.37, and not followed here"},
		{"configMap: {name: c}", "configMap: {name: c, defaultUser: 7}", "volumes[1].configMap.defaultUser: alpha in "},
		{"  - name: a\n", "  - name: a\n    livenessProbe: {grpc: {port: 80, mode: TLS}}\n", "containers[0].livenessProbe.grpc.mode: alpha in "},
		{"action: RestartAllContainers", "action: Reboot", "initContainers[0].restartPolicyRules[0].action: "},
	} {
		_, _, err := manifest.Read("web.yaml", []byte(strings.Replace(good, test.from, test.to, 1)), manifest.Options{NodeName: "n"})
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s → %s: %v, want %q", test.from, test.to, err, test.want)
		}
	}
}
