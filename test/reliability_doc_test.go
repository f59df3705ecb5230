package test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// The tests and scripts that docs/track-record.md names exist, and in docs/reliability.md each name
// is one of a test, or the beginning of some, as -run takes it.
func TestReliabilityDocuments(t *testing.T) {
	var tests bytes.Buffer
	for _, text := range testFiles(t) {
		tests.Write(text)
	}
	for _, d := range []struct {
		path, end string
		atLeast   int
	}{
		{"../docs/track-record.md", "(", 250},
		{"../docs/reliability.md", "", 30},
	} {
		doc := read(t, d.path)
		named := regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w+`).FindAll(doc, -1)
		if len(named) < d.atLeast {
			t.Errorf("%s: only %d tests are named: is this the document?", d.path, len(named))
		}
		for _, name := range named {
			if !bytes.Contains(tests.Bytes(), []byte("func "+string(name)+d.end)) {
				t.Errorf("%s: there is no test %s", d.path, name)
			}
		}
		for _, m := range regexp.MustCompile(`\b(?:script|TestScript)/(\w+)`).FindAllSubmatch(doc, -1) {
			if _, err := os.Stat(filepath.Join("script", string(m[1])+".txtar")); err != nil {
				t.Errorf("%s: %v", d.path, err)
			}
		}
	}
}
