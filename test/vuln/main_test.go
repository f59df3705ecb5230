package main

import (
	"strings"
	"testing"
)

// The output of govulncheck -format json, shortened: a vulnerability in a linked package, and one
// in a module without linked packages.
const output = `
{"config":{"protocol_version":"v1.0.0","db_last_modified":"2026-08-21T20:38:00Z"}}
{"progress":{"message":"Scanning"}}
{"osv":{"id":"GO-2026-0001","summary":"Reads beyond the end"}}
{"osv":{"id":"GO-2026-0002","summary":"Not linked"}}
{"finding":{"osv":"GO-2026-0002","fixed_version":"v2.0.0","trace":[{"module":"example.org/b","version":"v1.0.0"}]}}
{"finding":{"osv":"GO-2026-0001","fixed_version":"v1.2.0","trace":[{"module":"example.org/a","version":"v1.1.0","package":"example.org/a/x"}]}}`

// A vulnerability without an answer fails the build, and so does an answer whose vulnerability is
// gone.
func TestVulnerabilitiesAreAnswered(t *testing.T) {
	found, modified, err := findings(strings.NewReader(output))
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 1 || modified != "2026-08-21T20:38:00Z" {
		t.Fatalf("found %v in a database of %s, want GO-2026-0001 alone", found, modified)
	}
	for _, test := range []struct{ answers, want string }{
		{"", "GO-2026-0001: Reads beyond the end: example.org/a/x v1.1.0, fixed in v1.2.0"},
		{"# reasons\nGO-2026-0001 x is never given what a container made\n", ""},
		{"GO-2026-0001 a reason\nGO-2026-0002 another\n", "GO-2026-0002 is answered and no longer found"},
	} {
		answers, err := parseAnswers(test.answers)
		if err != nil {
			t.Fatal(err)
		}
		err = judge(found, answers)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("with the answers %q: error is %v, want %q", test.answers, err, test.want)
		}
	}
	if _, err := parseAnswers("GO-2026-0001\n"); err == nil {
		t.Error("an answer without a reason is taken")
	}
}
