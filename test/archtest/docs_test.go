package archtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// columns is the maximum length of a line of prose: two versions fit side by side, and lines are
// easy to read.
const columns = 120

// The lines of documents are short. Tables, code and the generated docs/tour.md may be wider.
func TestDocumentsHaveShortLines(t *testing.T) {
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 10 {
		t.Errorf("only %d documents", len(files))
	}
	for _, path := range append(files, "../../README.md", "../../CONTRIBUTING.md", "../../SECURITY.md") {
		if filepath.Base(path) == "tour.md" {
			continue
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		n, fenced := 0, false
		for line := range strings.Lines(string(data)) {
			n++
			if strings.HasPrefix(line, "```") {
				fenced = !fenced
			}
			tableOrCode := fenced || strings.HasPrefix(line, "|") || strings.HasPrefix(line, "    ")
			if w := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); w > columns && !tableOrCode {
				t.Errorf("%s:%d has %d columns, more than %d", path, n, w, columns)
			}
		}
	}
}
