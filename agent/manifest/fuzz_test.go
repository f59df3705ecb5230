package manifest_test

import (
	"testing"

	"github.com/crisp-cri/crisp/agent/manifest"
)

// A manifest directory may contain any files. Reading them yields objects or errors and never ends
// the agent. Read and Split accept the same files.
func FuzzRead(f *testing.F) {
	for _, text := range []string{
		"", "---\n---\n", "a: [", "kind: Pod", "apiVersion: v1\nkind: List\nitems: [~, 1, {kind: Pod}]\n",
		"apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: a, image: b}]}\n",
		"apiVersion: v1\nkind: Pod\nmetadata: &m {name: web, labels: *m}\n", "x: &x [*x]\n", "? [a]\n: b\n", "{<<: {kind: Pod}, apiVersion: v1}",
		"apiVersion: v1\nkind: Pod\nmetadata: ~\nspec: {containers: ~, volumes: [~], initContainers: [{}], securityContext: 1}\n",
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"../x\"}\ndata: {a: 1}\nbinaryData: {b: \"!\"}\n",
		"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {replicas: -1, template: {spec: ~}}\n",
		`{"apiVersion":"v1","kind":"PodList","items":[{"metadata":{"name":"a\u0000b"},"spec":{"containers":[{"name":"c","image":"i","ports":[{"containerPort":99999999999}]}]}}]}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, unknown := range []manifest.Unknown{manifest.Ignore, manifest.Strict} {
			objects, _, err := manifest.Read("f.yaml", text, manifest.Options{NodeName: "node", Source: manifest.SourceFile, Unknown: unknown})
			for _, o := range objects {
				if o.GetName() == "" {
					t.Errorf("an object has no name (%v)", err)
				}
			}
		}
		_, _ = manifest.Split("f.yaml", text)
	})
}
