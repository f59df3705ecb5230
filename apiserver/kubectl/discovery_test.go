package kubectl

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What discovery says can be read can be read: kubectl reads a subresource before it patches it.
func TestSubresourcesAreServed(t *testing.T) {
	a := newAPI(t, &added{})
	a.put(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web"},"spec":{"containers":[{"name":"a","image":"i"}]}}`)
	a.put(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web"},"spec":{"selector":{"matchLabels":{"a":"b"}},
		"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"a","image":"i"}]}}}}`)
	streams := []string{"pods/log", "pods/exec", "pods/attach", "pods/portforward"} // of a container that runs
	looked := 0
	for group, path := range map[string]string{"v1": "/api/v1", "apps/v1": "/apis/apps/v1"} {
		for _, r := range resources(group) {
			of, sub, is := strings.Cut(r.Name, "/")
			if !is || !slices.Contains(r.Verbs, "get") || slices.Contains(streams, r.Name) {
				continue
			}
			looked++
			if w := a.ask(http.MethodGet, path+"/namespaces/default/"+of+"/web/"+sub, "", "", func() {}); w.Code != http.StatusOK {
				t.Errorf("%s: %d %s", r.Name, w.Code, w.Body)
			}
		}
	}
	if looked < 4 {
		t.Errorf("only %d are served", looked)
	}
}

// Each group that discovery lists can be read by itself, as some clients do.
func TestGroupsAreServed(t *testing.T) {
	a := newAPI(t, &added{})
	for _, g := range groups().Groups {
		w := a.ask(http.MethodGet, "/apis/"+g.Name, "", "", func() {})
		var got metav1.APIGroup
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || got.Kind != "APIGroup" || got.Name != g.Name || got.PreferredVersion != g.PreferredVersion {
			t.Errorf("%s: %d %s, %v", g.Name, w.Code, w.Body, err)
		}
	}
}

// kubectl reads this document, as protobuf, to check the objects of a List: one without
// definitions lets them pass.
func TestOpenAPIv2(t *testing.T) {
	w := newAPI(t, &added{}).ask(http.MethodGet, "/openapi/v2", "", "", func() {})
	var fields []string
	for b := w.Body.Bytes(); len(b) > 0; {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 || kind != protowire.BytesType {
			t.Fatalf("%d: %q", w.Code, w.Body)
		}
		text, m := protowire.ConsumeString(b[n:])
		if m < 0 {
			t.Fatalf("%d: %q", w.Code, w.Body)
		}
		fields, b = append(fields, string(rune('0'+number))+text), b[n+m:]
	}
	if want := []string{"12.0", "2\n\x05crisp\x12\x00"}; w.Code != http.StatusOK || !slices.Equal(fields, want) {
		t.Errorf("%d: %q, want %q", w.Code, fields, want)
	}
}
