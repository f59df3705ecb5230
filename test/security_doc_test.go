package test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// SECURITY.md names the tests that try known vulnerabilities. The tests exist, and name the
// vulnerability.
func TestKnownVulnerabilitiesAreTried(t *testing.T) {
	doc, err := os.ReadFile("../SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	texts := testFiles(t)
	number := regexp.MustCompile(`CVE-\d{4}-\d+`)
	var tried []string
	for line := range strings.Lines(string(doc)) {
		cells := strings.Split(line, "|")
		if len(cells) != 6 || !number.MatchString(cells[1]) {
			continue
		}
		files := filesOfTests(t, texts, cells[4])
		for _, cve := range number.FindAllString(cells[1], -1) {
			tried = append(tried, cve)
			if !slices.ContainsFunc(files, func(text []byte) bool { return bytes.Contains(text, []byte(cve)) }) {
				t.Errorf("none of the tests named for %s mentions it: %s", cve, cells[4])
			}
		}
	}
	if len(tried) < 13 {
		t.Errorf("only %v are in the table: has its form changed?", tried)
	}
	// Each vulnerability that a test names is in the table.
	for path, text := range texts {
		if filepath.Dir(path) == filepath.Join("..", "test") {
			for _, cve := range number.FindAllString(string(text), -1) {
				if !slices.Contains(tried, cve) {
					t.Errorf("%s tries %s, which SECURITY.md does not have", path, cve)
				}
			}
		}
	}
}

// filesOfTests returns the texts of the files with the tests and scripts that a cell names.
func filesOfTests(t *testing.T, texts map[string][]byte, cell string) [][]byte {
	t.Helper()
	var found [][]byte
	for _, m := range regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(cell, -1) {
		before := len(found)
		for _, text := range texts {
			if bytes.Contains(text, []byte("func "+m[1]+"(")) {
				found = append(found, text)
			}
		}
		if len(found) == before {
			t.Errorf("there is no test %s", m[1])
		}
	}
	for _, m := range regexp.MustCompile(`\bscript/(\w+)`).FindAllStringSubmatch(cell, -1) {
		text, err := os.ReadFile(filepath.Join("script", m[1]+".txtar"))
		if err != nil {
			t.Errorf("script: %v", err)
		}
		found = append(found, text)
	}
	if len(found) == 0 {
		t.Errorf("no test is named: %s", cell)
	}
	return found
}
