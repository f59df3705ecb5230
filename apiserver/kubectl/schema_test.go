package kubectl

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/apiserver/api"
	"github.com/google/go-cmp/cmp"
)

// kubectl explain follows references from a kind to a field, with its description and patch
// strategy.
func TestSchemas(t *testing.T) {
	all := schemasOf("v1")
	follow := func(name string, fields ...string) map[string]any {
		t.Helper()
		at := all[name]
		for _, field := range fields {
			if items, ok := at["items"].(map[string]any); ok {
				at = items
			}
			if of, ok := at["allOf"].([]any); ok {
				at = all[strings.TrimPrefix(of[0].(map[string]string)["$ref"], "#/components/schemas/")]
			}
			properties, _ := at["properties"].(map[string]any)
			next, ok := properties[field].(map[string]any)
			if !ok {
				t.Fatalf("%s has no %s: %v", name, field, slices.Sorted(maps.Keys(properties)))
			}
			at = next
		}
		return at
	}
	containers := follow("io.k8s.api.core.v1.Pod", "spec", "containers")
	if text, _ := containers["description"].(string); !strings.HasPrefix(text, "List of containers belonging to the pod.") {
		t.Errorf("description %q", text)
	}
	delete(containers, "description")
	if diff := cmp.Diff(map[string]any{
		"type": "array", "items": map[string]any{"allOf": []any{map[string]string{"$ref": "#/components/schemas/io.k8s.api.core.v1.Container"}}},
		"x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "name",
	}, containers); diff != "" {
		t.Error(diff)
	}
	for _, test := range []struct {
		fields string
		want   map[string]any
	}{
		{"apiVersion", map[string]any{"type": "string"}},
		{"metadata creationTimestamp", map[string]any{"type": "string", "format": "date-time"}},
		{"metadata labels", map[string]any{"type": "object", "additionalProperties": map[string]any{"type": "string"}}},
		{"spec terminationGracePeriodSeconds", map[string]any{"type": "integer", "format": "int64"}},
		{"spec containers resources limits", map[string]any{"type": "object", "additionalProperties": map[string]any{"allOf": []any{map[string]string{"$ref": "#/components/schemas/io.k8s.apimachinery.pkg.api.resource.Quantity"}}}}},
		{"spec containers livenessProbe httpGet port", map[string]any{"allOf": []any{map[string]string{"$ref": "#/components/schemas/io.k8s.apimachinery.pkg.util.intstr.IntOrString"}}}},
		{"spec containers securityContext privileged", map[string]any{"type": "boolean"}},
	} {
		got := follow("io.k8s.api.core.v1.Pod", strings.Fields(test.fields)...)
		if got["description"] == nil {
			t.Errorf("%s says nothing of itself", test.fields)
		}
		delete(got, "description")
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: %s", test.fields, diff)
		}
	}
	if diff := cmp.Diff(map[string]any{"format": "int-or-string", "oneOf": []any{map[string]string{"type": "integer"}, map[string]string{"type": "string"}}}, all["io.k8s.apimachinery.pkg.util.intstr.IntOrString"]); diff != "" {
		t.Error(diff)
	}
	if got := all["io.k8s.api.core.v1.PodSpec"]["required"]; !cmp.Equal(got, []string{"containers"}) {
		t.Errorf("of a pod's spec are required %v", got)
	}
	// Every kind has a schema, and every reference has a target.
	for _, gv := range groupVersions() {
		all = schemasOf(gv)
		kinds := map[string]bool{}
		for name, schema := range all {
			if of, ok := schema["x-kubernetes-group-version-kind"].([]any); ok {
				kinds[of[0].(map[string]string)["kind"]] = strings.HasSuffix(name, "."+of[0].(map[string]string)["kind"])
			}
		}
		for _, k := range api.Kinds {
			if k.Group == gv && !kinds[k.Name] {
				t.Errorf("%s: %s has no schema of its own: %v", gv, k.Name, kinds)
			}
		}
		data, err := json.Marshal(all)
		if err != nil {
			t.Fatal(err)
		}
		for _, ref := range strings.Split(string(data), `"$ref":"#/components/schemas/`)[1:] {
			if name, _, _ := strings.Cut(ref, `"`); all[name] == nil {
				t.Errorf("%s: there is no %s", gv, name)
			}
		}
	}
}
