package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// columns is the maximum length of a line of prose: two versions fit side by side, and lines are
// easy to read. A row of a table cannot be wrapped: beyond rowColumns a list is readable in a
// terminal, a table is not.
const (
	columns    = 120
	rowColumns = 250
)

// The lines of documents are short. Code and the generated docs/tour.md may be wider, and so may rows
// of docs/metrics.md with the pattern of a difference, which a test reads.
func TestDocumentsHaveShortLines(t *testing.T) {
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 10 {
		t.Errorf("only %d documents", len(files))
	}
	for _, path := range append(files, "../../README.md", "../../CONTRIBUTING.md", "../../SECURITY.md", "../../CHANGELOG.md", "../../docs/changes/README.md") {
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
			limit := columns
			switch {
			case fenced || strings.HasPrefix(line, "    ") || strings.HasPrefix(line, "| `only "):
				continue
			case strings.HasPrefix(line, "|"):
				limit = rowColumns
			}
			if w := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); w > limit {
				t.Errorf("%s:%d has %d columns, more than %d", path, n, w, limit)
			}
		}
	}
}

var (
	inCode = regexp.MustCompile("`([^`\\s]+)`|\\]\\(([^)#\\s]+)")
	inTree = regexp.MustCompile(`^(?:\.\./|\./)?((?:agent|apiserver|checkpoint|cmd|config|docs|image|internal|network|oci|packaging|server|streaming|test)/[\w./-]*\w)$`)
)

// The files and directories that documents name exist: whoever moves one finds out.
func TestDocumentsNameWhatExists(t *testing.T) {
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	elsewhere := map[string]bool{ // and placeholders
		"test/e2e_node": true, "test/e2e_node/jenkins/default-kubelet-config.yaml": true, "test/utils/image/manifest.go": true, // Kubernetes'
		"agent/images":        true, // k3s'
		"test/script/x.txtar": true, "server/spec/testdata/x.txtar": true,
	}
	for _, path := range append(files, "../../README.md", "../../CONTRIBUTING.md", "../../SECURITY.md") {
		switch filepath.Base(path) {
		case "track-record.md": // names the places of its time
			continue
		case "tour.md": // generated
			continue
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range inCode.FindAllStringSubmatch(string(data), -1) {
			in := inTree.FindStringSubmatch(m[1] + m[2])
			if in == nil || elsewhere[in[1]] {
				continue
			}
			named++
			if _, err := os.Stat(filepath.Join("../..", in[1])); err != nil {
				t.Errorf("%s names %s, which does not exist", path, in[1])
			}
		}
	}
	if named < 200 {
		t.Errorf("only %d are named: are these the documents?", named)
	}
}
