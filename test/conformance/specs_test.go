package main

import (
	"encoding/json"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCompare(t *testing.T) {
	const list = `# comment
[k8s.io] A works
[k8s.io] A is skipped now
[k8s.io] A is gone
[k8s.io] A twice
criu apparmor [k8s.io] B needs more
apparmor [k8s.io] B fails
`
	const report = `[{"SuiteConfig": {"FocusStrings": null}, "SpecReports": [
		{"LeafNodeType": "BeforeSuite", "State": "passed"},
		{"ContainerHierarchyTexts": ["[k8s.io] A"], "LeafNodeType": "It", "LeafNodeText": "works", "State": "passed"},
		{"ContainerHierarchyTexts": ["[k8s.io] A"], "LeafNodeType": "It", "LeafNodeText": "is skipped now", "State": "skipped", "Failure": {"Message": "no such feature"}},
		{"ContainerHierarchyTexts": ["[k8s.io] A"], "LeafNodeType": "It", "LeafNodeText": "twice", "State": "failed", "Failure": {"Message": "alas"}},
		{"ContainerHierarchyTexts": ["[k8s.io] A"], "LeafNodeType": "It", "LeafNodeText": "twice", "State": "passed"},
		{"ContainerHierarchyTexts": ["[k8s.io] A", "new"], "LeafNodeType": "It", "LeafNodeText": "works", "State": "passed"},
		{"ContainerHierarchyTexts": ["[k8s.io] B"], "LeafNodeType": "It", "LeafNodeText": "fails", "State": "failed"}]}]`
	noCRIU := func(need string) string {
		if need == "criu" {
			return "gone"
		}
		return ""
	}
	type run struct{ focus, skip string }
	for r, want := range map[run][]string{
		{"", "^$"}: {"[k8s.io] A is skipped now: skipped no such feature", "[k8s.io] A is gone: critest has no such spec",
			"[k8s.io] A twice: failed alas", "[k8s.io] B fails: failed"},
		{"", "gone|twice"}: {"[k8s.io] A is skipped now: skipped no such feature", "[k8s.io] B fails: failed"},
		{"B f", "^$"}:      {"[k8s.io] B fails: failed"},
		{"wor", "^$"}:      nil,
	} {
		var suites []suite
		if err := json.Unmarshal([]byte(report), &suites); err != nil {
			t.Fatal(err)
		}
		if r.focus != "" {
			suites[0].SuiteConfig.FocusStrings = []string{r.focus}
		}
		missing, more, err := compare(list, suites, regexp.MustCompile(r.skip), noCRIU)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, missing); diff != "" {
			t.Errorf("%v: missing (-want +got):\n%s", r, diff)
		}
		if diff := cmp.Diff([]string{"[k8s.io] A new works"}, more); diff != "" {
			t.Errorf("%v: not listed (-want +got):\n%s", r, diff)
		}
	}
	if _, _, err := compare("A works\n", nil, regexp.MustCompile("^$"), noCRIU); err == nil {
		t.Error("a line without a spec is taken")
	}
}
