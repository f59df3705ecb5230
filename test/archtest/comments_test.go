package archtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// vague matches subjects that leave open who acts.
var vague = regexp.MustCompile(`(?i)\b(?:somebody|nobody|anybody|someone)\b`)

// vagueAllowed are the beginnings of comments and lines that have such a word all the same, by file.
var vagueAllowed = map[string][]string{
	// The user of that name.
	"oci/sandbox_create.go": {"// nobody is the user of the sandbox's init"},
	"test/bench/pod.go":     {"// nobody is the user of restricted containers"},
	"test/reach_test.go":    {"// nobody is another user of the host", "// nobodyCmd is:"},
	// The constant of that name.
	"test/model/play/play.go": {"// nobody is an ID without an object", "// the ID nobody gets an alias too"},
}

// Comments and documents name who acts: the process, the caller, the administrator. With a vague
// subject the reader has to find out.
func TestSubjectsAreNamed(t *testing.T) {
	used := map[string]bool{}
	check := func(path, where, text string) {
		word := vague.FindString(text)
		if word == "" {
			return
		}
		for _, begin := range vagueAllowed[path] {
			if strings.HasPrefix(text, begin) {
				used[path+begin] = true
				return
			}
		}
		t.Errorf("%s: %q: say who, or use the passive", where, word)
	}
	for _, f := range tree(t) {
		for _, group := range f.ast.Comments {
			var text strings.Builder
			for _, c := range group.List {
				text.WriteString(c.Text + "\n")
			}
			check(f.path, fset.Position(group.Pos()).String(), text.String())
		}
	}
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || d.Name() == "bin" || path != root && strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		}
		cut := map[string]func(string) string{".md": withoutCode, ".c": comment, ".h": comment}[filepath.Ext(path)]
		if cut == nil {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		for line := range strings.Lines(cut(string(data))) {
			check(rel, rel, line)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for path, list := range vagueAllowed {
		for _, begin := range list {
			if !used[path+begin] {
				t.Errorf("%s has no line that begins with %q and has such a word", path, begin)
			}
		}
	}
}

var (
	codeBlock = regexp.MustCompile("(?ms)^```.*?^```$|^ {4,}.*?$")
	codeSpan  = regexp.MustCompile("`[^`]*`")
	cComment  = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*`)
)

// withoutCode returns a document without its code.
func withoutCode(text string) string {
	return codeSpan.ReplaceAllString(codeBlock.ReplaceAllString(text, ""), "")
}

// comment returns the comments of a C file.
func comment(text string) string {
	return strings.Join(cComment.FindAllString(text, -1), "\n")
}
