package api

import (
	"testing"
)

// Patches do what Kubernetes' do to a pod.
func TestMerge(t *testing.T) {
	const given = `{"metadata":{"labels":{"a":"1","b":"2"}},"spec":{"containers":[{"name":"x","image":"1"},{"name":"y","image":"1"}],"tolerations":[{"key":"k"}]}}`
	const plain, strategic = "application/merge-patch+json", "application/strategic-merge-patch+json"
	for _, test := range []struct{ name, kind, patch, want string }{
		{"a label more and one less", plain, `{"metadata":{"labels":{"a":null,"c":"3"}}}`, `{"metadata":{"labels":{"b":"2","c":"3"}},"spec":{"containers":[{"image":"1","name":"x"},{"image":"1","name":"y"}],"tolerations":[{"key":"k"}]}}`},
		{"a plain patch replaces lists", plain, `{"spec":{"containers":[{"name":"x","image":"2"}]}}`, `{"metadata":{"labels":{"a":"1","b":"2"}},"spec":{"containers":[{"image":"2","name":"x"}],"tolerations":[{"key":"k"}]}}`},
		{"a strategic one merges them by name", strategic, `{"spec":{"$setElementOrder/containers":[{"name":"x"},{"name":"y"}],"containers":[{"name":"y","image":"2"},{"name":"z"}]}}`, `{"metadata":{"labels":{"a":"1","b":"2"}},"spec":{"containers":[{"image":"1","name":"x"},{"image":"2","name":"y"},{"name":"z"}],"tolerations":[{"key":"k"}]}}`},
		{"and takes items away", strategic, `{"spec":{"containers":[{"name":"x","$patch":"delete"}]}}`, `{"metadata":{"labels":{"a":"1","b":"2"}},"spec":{"containers":[{"image":"1","name":"y"}],"tolerations":[{"key":"k"}]}}`},
		{"lists without a key are replaced", strategic, `{"spec":{"tolerations":[]}}`, `{"metadata":{"labels":{"a":"1","b":"2"}},"spec":{"containers":[{"image":"1","name":"x"},{"image":"1","name":"y"}],"tolerations":[]}}`},
	} {
		got, err := applyPatch(test.kind, []byte(given), []byte(test.patch))
		if err != nil || string(got) != test.want {
			t.Errorf("%s: %s, %v\nwant %s", test.name, got, err, test.want)
		}
	}
	if _, err := applyPatch("application/json-patch+json", []byte(given), []byte(`[]`)); err == nil {
		t.Error("a JSON patch is taken for another")
	}
}

// Prometheus' text escapes what would end a value.
func TestPage(t *testing.T) {
	if got, want := labelText(map[string]string{"b": "x\"\\\n", "a": "1"}), `{a="1",b="x\"\\\n"}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
