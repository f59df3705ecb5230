package test

import (
	"bytes"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/test/testenv"
)

// docs/agent-tests.md has an entry for each requirement of the agent that needs no API server, and
// for each defect of others; the tests that it names exist in the named packages.
func TestAgentDocumentIsComplete(t *testing.T) {
	text := string(read(t, "../docs/agent-tests.md"))
	_, defects, _ := strings.Cut(text, "\n## 2.3.")
	// Left out: requirements of the runtime, those removed from the kubelet, and those that
	// need an API server.
	left := []int{9, 22, 23, 29, 35, 39, 40, 78, 93}
	for _, part := range []struct {
		text    string
		entries int
		left    []int
	}{{text, 92, left}, {defects, 20, nil}} {
		var have []int
		for _, m := range regexp.MustCompile(`(?m)^- (\d+(?:, \d+)*): `).FindAllStringSubmatch(part.text, -1) {
			for word := range strings.SplitSeq(m[1], ", ") {
				n, err := strconv.Atoi(word)
				if err != nil {
					t.Fatal(err)
				}
				have = append(have, n)
			}
		}
		for n := 1; n <= part.entries; n++ {
			if !slices.Contains(have, n) && !slices.Contains(part.left, n) {
				t.Errorf("no entry %d of %d", n, part.entries)
			}
		}
	}

	if named := namedTests(t, text); named < 200 {
		t.Errorf("only %d tests are named: is this the document?", named)
	}
}

// The tests that docs/why.md names exist.
func TestWhyDocument(t *testing.T) {
	if named := namedTests(t, string(read(t, "../docs/why.md"))); named < 30 {
		t.Errorf("only %d tests are named: is this the document?", named)
	}
}

// namedTests checks that the tests that a document names exist, and returns their number.
// The format is: `package` TestA, TestB/part; `other` TestC.
func namedTests(t *testing.T, text string) int {
	t.Helper()
	text = strings.Join(strings.Fields(text), " ") // lines are wrapped anywhere
	named := 0
	for _, m := range regexp.MustCompile("`((?:agent|apiserver|cmd|image|internal|server|test)[\\w/]*)` (Test[\\w/]+(?:, (?:Test|/)[\\w/]+)*)").FindAllStringSubmatch(text, -1) {
		files, err := filepath.Glob(filepath.Join("..", m[1], "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		var all bytes.Buffer
		for _, file := range files {
			all.Write(read(t, file))
		}
		for name := range strings.SplitSeq(m[2], ", ") {
			named++
			test, part, _ := strings.Cut(name, "/")
			if test != "" && !strings.Contains(all.String(), "func "+test+"(") {
				t.Errorf("there is no test %s in %s", test, m[1])
			}
			there := part == "" || strings.Contains(all.String(), strconv.Quote(part))
			switch test {
			case "TestScript":
				there = testenv.Exists(filepath.Join("script", part+".txtar"))
			case "TestCommandLine": // its parts are commands, which are not strings of a Go file
				there = true
			}
			if !there {
				t.Errorf("there is no part %s of %s", part, m[1])
			}
		}
	}
	return named
}
