package kubectl

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// Patches change a pod as they do in Kubernetes.
func TestMerge(t *testing.T) {
	const given = `{"metadata":{"labels":{"a":"1","b":"2"}},"spec":{"containers":[{"name":"x","image":"1"},{"name":"y","image":"1"}],"tolerations":[{"key":"k"}]}}`
	const plain, strategic = "application/merge-patch+json", "application/strategic-merge-patch+json"
	for _, test := range []struct{ name, kind, patch, want string }{
		{"a label more and one less", plain, `{"metadata":{"labels":{"a":null,"c":"3"}}}`, `{"metadata":{"labels":{"b":"2","c":"3"}},"spec":{"containers":[{"image":"1","name":"x"},{"image":"1","name":"y"}],"tolerations":[{"key":"k"}]}}`},
		{"a plain patch replaces lists", plain, `{"spec":{"containers":[{"name":"x","image":"2"}]}}`, `{"metadata":{"labels":{"a":"1","b":"2"}},"spec":{"containers":[{"image":"2","name":"x"}],"tolerations":[{"key":"k"}]}}`},
		{"a strategic one merges them by name", strategic, `{"spec":{"$setElementOrder/containers":[{"name":"x"},{"name":"y"},{"name":"z"}],"containers":[{"name":"y","image":"2"},{"name":"z"}]}}`, `{"metadata":{"labels":{"a":"1","b":"2"}},"spec":{"containers":[{"image":"1","name":"x"},{"image":"2","name":"y"},{"name":"z"}],"tolerations":[{"key":"k"}]}}`},
		{"and takes items away", strategic, `{"spec":{"containers":[{"name":"x","$patch":"delete"}]}}`, `{"metadata":{"labels":{"a":"1","b":"2"}},"spec":{"containers":[{"image":"1","name":"y"}],"tolerations":[{"key":"k"}]}}`},
		{"lists without a key are replaced", strategic, `{"spec":{"tolerations":[]}}`, `{"metadata":{"labels":{"a":"1","b":"2"}},"spec":{"containers":[{"image":"1","name":"x"},{"image":"1","name":"y"}],"tolerations":[]}}`},
	} {
		got, err := applyPatch(&v1.Pod{}, test.kind, []byte(given), []byte(test.patch))
		if err != nil || sorted(got) != test.want {
			t.Errorf("%s: %s, %v\nwant %s", test.name, got, err, test.want)
		}
	}
	for _, kind := range []string{"", "application/json", "application/apply-patch+yaml"} {
		if _, err := applyPatch(&v1.Pod{}, kind, []byte(given), []byte(`{}`)); err == nil {
			t.Errorf("%q is taken for a patch", kind)
		}
	}
}

// Strategic merge patches have directives, which kubectl edit and apply send.
func TestDirectives(t *testing.T) {
	const given = `{"metadata":{"finalizers":["a","b"]},"spec":{"strategy":{"rollingUpdate":{"maxSurge":1},"type":"RollingUpdate"},` +
		`"template":{"spec":{"containers":[{"env":[{"name":"x","value":"1"},{"name":"y","value":"2"}],"name":"c"}]}}}}`
	spec := func(env string) string { return `{"template":{"spec":{"containers":[{` + env + `"name":"c"}]}}}` }
	const none = `"spec":{"strategy":null,`
	for _, test := range []struct{ name, patch, want string }{
		{"the other fields of a union go", `{"metadata":null,"spec":{"strategy":{"$retainKeys":["type"],"type":"Recreate"},"template":null}}`, `{"spec":{"strategy":{"type":"Recreate"}}}`},
		{"a map is replaced", `{"metadata":null,"spec":{"strategy":{"$patch":"replace","type":"Recreate"},"template":null}}`, `{"spec":{"strategy":{"type":"Recreate"}}}`},
		{"or emptied", `{"metadata":null,"spec":{"strategy":{"$patch":"delete"},"template":null}}`, `{"spec":{"strategy":{}}}`},
		{"a list is replaced", `{"metadata":null,` + none + `"template":{"spec":{"containers":[{"name":"c","env":[{"$patch":"replace"},{"name":"z"}]}]}}}}`, `{"spec":` + spec(`"env":[{"name":"z"}],`) + `}`},
		{"a union that was not given", `{"metadata":null,"spec":{"paused":{"$retainKeys":["x"],"$setElementOrder/y":["z"],"x":[{"$retainKeys":["w"],"w":1}]},"strategy":null,"template":null}}`, `{"spec":{"paused":{"x":[{"w":1}]}}}`},
		{"a large number stays", `{"metadata":null,` + none + `"template":null,"x":{"n":9223372036854775807}}}`, `{"spec":{"x":{"n":9223372036854775807}}}`},
		{"words go from a list", `{"metadata":{"$deleteFromPrimitiveList/finalizers":["a"]},` + none + `"template":null}}`, `{"metadata":{"finalizers":["b"]},"spec":{}}`},
	} {
		got, err := applyPatch(&appsv1.Deployment{}, "application/strategic-merge-patch+json", []byte(given), []byte(test.patch))
		if err != nil || sorted(got) != test.want {
			t.Errorf("%s: %s, %v\nwant %s", test.name, got, err, test.want)
		}
	}
}

// sorted returns objects with their fields sorted by name.
func sorted(text []byte) string {
	var v any
	if utiljson.Unmarshal(text, &v) != nil {
		return string(text)
	}
	return string(mustMarshal(v))
}

// The examples of RFC 6902, appendix A, and malformed patches.
func TestJSONPatch(t *testing.T) {
	for _, test := range []struct{ name, given, patch, want string }{
		{"A.1 add a member", `{"foo":"bar"}`, `[{"op":"add","path":"/baz","value":"qux"}]`, `{"baz":"qux","foo":"bar"}`},
		{"A.2 add an item", `{"foo":["bar","baz"]}`, `[{"op":"add","path":"/foo/1","value":"qux"}]`, `{"foo":["bar","qux","baz"]}`},
		{"A.3 remove a member", `{"baz":"qux","foo":"bar"}`, `[{"op":"remove","path":"/baz"}]`, `{"foo":"bar"}`},
		{"A.4 remove an item", `{"foo":["bar","qux","baz"]}`, `[{"op":"remove","path":"/foo/1"}]`, `{"foo":["bar","baz"]}`},
		{"A.5 replace", `{"baz":"qux","foo":"bar"}`, `[{"op":"replace","path":"/baz","value":"boo"}]`, `{"baz":"boo","foo":"bar"}`},
		{"A.6 move", `{"foo":{"bar":"baz","waldo":"fred"},"qux":{"corge":"grault"}}`, `[{"op":"move","from":"/foo/waldo","path":"/qux/thud"}]`, `{"foo":{"bar":"baz"},"qux":{"corge":"grault","thud":"fred"}}`},
		{"A.7 move an item", `{"foo":["all","grass","cows","eat"]}`, `[{"op":"move","from":"/foo/1","path":"/foo/3"}]`, `{"foo":["all","cows","eat","grass"]}`},
		{"A.8 test", `{"baz":"qux","foo":["a",2,"c"]}`, `[{"op":"test","path":"/baz","value":"qux"},{"op":"test","path":"/foo/1","value":2}]`, `{"baz":"qux","foo":["a",2,"c"]}`},
		{"A.9 a test that fails", `{"baz":"qux"}`, `[{"op":"test","path":"/baz","value":"bar"}]`, ""},
		{"A.10 add a member that has members", `{"foo":"bar"}`, `[{"op":"add","path":"/child","value":{"grandchild":{}}}]`, `{"child":{"grandchild":{}},"foo":"bar"}`},
		{"A.11 what is not known is ignored", `{"foo":"bar"}`, `[{"op":"add","path":"/baz","value":"qux","xyz":123}]`, `{"baz":"qux","foo":"bar"}`},
		{"A.12 add to what is not there", `{"foo":"bar"}`, `[{"op":"add","path":"/baz/bat","value":"qux"}]`, ""},
		{"A.14 ~ and /", `{"/":9,"~1":10}`, `[{"op":"test","path":"/~01","value":10}]`, `{"/":9,"~1":10}`},
		{"A.15 numbers are no texts", `{"~1":10}`, `[{"op":"test","path":"/~01","value":"10"}]`, ""},
		{"A.16 behind the last", `{"foo":["bar"]}`, `[{"op":"add","path":"/foo/-","value":["abc","def"]}]`, `{"foo":["bar",["abc","def"]]}`},
		{"the document", `{"foo":1}`, `[{"op":"replace","path":"","value":{"bar":2}}]`, `{"bar":2}`},
		{"copy makes another", `{"a":{"x":1}}`, `[{"op":"copy","from":"/a","path":"/b"},{"op":"replace","path":"/b/x","value":2}]`, `{"a":{"x":1},"b":{"x":2}}`},
		{"no such item", `{"a":[1]}`, `[{"op":"remove","path":"/a/1"}]`, ""},
		{"no such member", `{"a":1}`, `[{"op":"replace","path":"/b","value":1}]`, ""},
		{"into itself", `{"a":{"b":1}}`, `[{"op":"move","from":"/a","path":"/a/b"}]`, ""},
		{"no value", `{"a":1}`, `[{"op":"add","path":"/b"}]`, ""},
		{"no pointer", `{"a":1}`, `[{"op":"remove","path":"a"}]`, ""},
		{"no operation", `{"a":1}`, `[{"op":"frob","path":"/a"}]`, ""},
		{"no list", `{"a":1}`, `{"op":"remove","path":"/a"}`, ""},
	} {
		got, err := applyPatch(&v1.Pod{}, "application/json-patch+json", []byte(test.given), []byte(test.patch))
		if (err == nil) != (test.want != "") || sorted(got) != test.want {
			t.Errorf("%s: %s, %v\nwant %s", test.name, got, err, test.want)
		}
	}
}

// An apply removes fields that it omits and the previous one had, and keeps fields set by others.
func TestThreeWay(t *testing.T) {
	const first = `{"metadata":{"name":"d","labels":{"a":"1","b":"2"}},"spec":{"replicas":2,"containers":[{"name":"x","image":"1","env":[{"name":"e"}]},{"name":"y"}]}}`
	const second = `{"metadata":{"name":"d","labels":{"a":"1"}},"spec":{"containers":[{"name":"x","image":"2"}]}}`
	made, last, err := threeWay(&v1.Pod{}, []byte(`{}`), nil, []byte(first))
	if err != nil {
		t.Fatal(err)
	}
	// Others pause it, and add a label and a container.
	others, err := applyPatch(&v1.Pod{}, "application/strategic-merge-patch+json", made, []byte(`{"metadata":{"labels":{"c":"3"}},"spec":{"paused":true,"containers":[{"name":"z"}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	got, last, err := threeWay(&v1.Pod{}, others, last, []byte(second))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"metadata":{"labels":{"a":"1","c":"3"},"name":"d"},"spec":{"containers":[{"name":"z"},{"image":"2","name":"x"}],"paused":true}}`
	if sorted(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if want := `{"metadata":{"labels":{"a":"1"},"name":"d"},"spec":{"containers":[{"image":"2","name":"x"}]}}`; sorted(last) != want {
		t.Errorf("kept %s\nwant %s", last, want)
	}
	// The apply of another manager removes nothing.
	if got, _, err = threeWay(&v1.Pod{}, got, nil, []byte(`{"metadata":{"name":"d","labels":{"o":"4"}}}`)); err != nil || !strings.Contains(string(got), `"labels":{"a":"1","c":"3","o":"4"}`) || !strings.Contains(string(got), `"image":"2"`) {
		t.Errorf("%s, %v", got, err)
	}
}
