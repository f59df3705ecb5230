package kubectl

import (
	"encoding/json"
	"errors"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"

	"github.com/crisp-cri/crisp/internal/fault"
)

// FuzzPatch patches an object with arbitrary data. The result is an object, or an error that blames
// the patch.
func FuzzPatch(f *testing.F) {
	const given = `{"metadata":{"labels":{"a":"1"},"finalizers":["a","b"]},"spec":{"containers":[{"name":"x","image":"1","env":[{"name":"e","value":"1"}]},{"name":"y"}],"tolerations":[{"key":"k"}]}}`
	for _, patch := range []string{
		`{"metadata":{"labels":{"a":null,"c":"3"}}}`, `{"spec":{"$setElementOrder/containers":[{"name":"x"},{"name":"z"}],"containers":[{"name":"y","image":"2"},{"name":"x","$patch":"delete"}]}}`,
		`{"spec":{"$retainKeys":["type"],"containers":[{"$patch":"replace"},{"name":"z"}]}}`, `{"metadata":{"$deleteFromPrimitiveList/finalizers":["a"],"$setElementOrder/finalizers":["b",1]}}`,
		`[{"op":"add","path":"/spec/containers/-","value":{"name":"n"}},{"op":"copy","from":"/spec","path":"/metadata/x"},{"op":"test","path":"/metadata/labels/a","value":"1"},{"op":"move","from":"/spec","path":"/s"}]`,
		`[{"op":"remove","path":""},{"op":"replace","path":"/~01"}]`, `{"spec":{"containers":[null,1,"x",[]]}}`, `{"spec":null}`, `null`, `[]`, `{}`, ``, `1`, `{"spec":{"containers":{"$patch":"merge"}}}`,
		`{"$patch":"replace"}`, `{"spec":{"containers":[{"$patch":"delete"}],"$setElementOrder/containers":[1]}}`, "metadata: {name: a}\nspec: {containers: [{name: x, image: 2}]}\n", `{"metadata":"x"}`,
	} {
		f.Add([]byte(given), []byte(given), []byte(patch))
		f.Add([]byte(`{}`), []byte(nil), []byte(patch))
		f.Add([]byte(given), []byte(`{"spec":{"containers":[{"name":"x"}]}}`), []byte(patch))
	}
	f.Fuzz(func(t *testing.T, given, last, patch []byte) {
		var object map[string]any
		if json.Unmarshal(given, &object) != nil || object == nil {
			t.Skip("no object: the store keeps none")
		}
		if len(last) > 0 && !json.Valid(last) {
			t.Skip("it was never applied")
		}
		for _, like := range []any{&v1.Pod{}, &appsv1.Deployment{}, &v1.Secret{}} {
			for _, kind := range []string{"application/json-patch+json", "application/merge-patch+json", "application/strategic-merge-patch+json"} {
				patched, err := applyPatch(like, kind, given, patch)
				if err != nil && !errors.Is(err, fault.Invalid) {
					t.Errorf("%s: error is %v, of kind %v", kind, err, fault.KindOf(err))
				}
				if err == nil && !json.Valid(patched) {
					t.Errorf("%s makes %q", kind, patched)
				}
			}
			merged, applied, err := threeWay(like, given, last, patch)
			if err != nil && !errors.Is(err, fault.Invalid) {
				t.Errorf("apply: error is %v, of kind %v", err, fault.KindOf(err))
			}
			if err == nil && (!json.Valid(merged) || !json.Valid(applied)) {
				t.Errorf("apply makes %q and keeps %q", merged, applied)
			}
		}
	})
}
