package manifest_test

import (
	"os"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/test/golden"
)

const (
	document  = "../../docs/fields.md"
	tableHead = "<!-- fields: made by go test ./agent/manifest -run TestDocument -update -->\n"
	tableEnd  = "<!-- end of fields -->"
)

// The reference in docs/fields.md is generated from the table of fields.
func TestDocument(t *testing.T) {
	data, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(data), tableHead)
	have, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table of fields", document)
	}
	want := "\n" + manifest.Reference() + "\n"
	if have == want {
		return
	}
	if !golden.Update() {
		t.Fatalf("the table of fields in %s is not that of the code: go test ./agent/manifest -run TestDocument -update", document)
	}
	if err := os.WriteFile(document, []byte(before+tableHead+want+tableEnd+after), 0o644); err != nil {
		t.Fatal(err)
	}
}
