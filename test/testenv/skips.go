package testenv

import (
	_ "embed"
	"fmt"
	"path"
	"slices"
	"strings"
)

//go:embed skips.txt
var listed string

// An entry of skips.txt is a test that may be skipped where one of its needs is not met.
type entry struct {
	dir, test string // test may have a * (path.Match)
	needs     []string
}

// entries reads skips.txt.
func entries(text string) ([]entry, error) {
	var all []entry
	n := 0
	for line := range strings.Lines(text) {
		n++
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		if len(fields) < 3 {
			return nil, fmt.Errorf("skips.txt:%d: want a package, a test and what it needs", n)
		}
		e := entry{fields[0], fields[1], fields[2:]}
		if _, err := path.Match(e.test, ""); err != nil {
			return nil, fmt.Errorf("skips.txt:%d: %w", n, err)
		}
		for _, need := range e.needs {
			if !known(need) {
				return nil, fmt.Errorf("skips.txt:%d: %s is unknown", n, need)
			}
		}
		all = append(all, e)
	}
	return all, nil
}

// A Verdict is how a test ended.
type Verdict struct {
	Dir    string // of its package in the tree: "oci/executor"
	Test   string // with its parents: "TestTree/systemd"
	Action string // pass, fail or skip, as go test -json has it
	Said   string // last line that the test printed
}

// Judge returns what is wrong with the tests that were skipped: no line of skips.txt
// allows it, or this machine has everything that the line says may be missing. If whole
// is set, all tests of the packages have been run, and lines about tests that are not
// among them are wrong too. If short is set, they were run with -short.
func Judge(verdicts []Verdict, whole, short bool) (complaints []string, err error) {
	return judge(listed, verdicts, whole, func(need string) string {
		if need == long && short {
			return "the tests are run with -short"
		}
		return Lacks(need)
	})
}

func judge(list string, verdicts []Verdict, whole bool, lacks func(need string) string) (complaints []string, err error) {
	all, err := entries(list)
	if err != nil {
		return nil, err
	}
	seen := make([]bool, len(all))
	ran := make(map[string]bool) // directories
	for _, v := range verdicts {
		ran[v.Dir] = true
		var may []string // needs of the lines about it
		found := false
		for i, e := range all {
			if e.dir != v.Dir {
				continue
			}
			if ok, _ := path.Match(e.test, v.Test); ok {
				found, seen[i], may = true, true, append(may, e.needs...)
			}
			if v.Action != "pass" && strings.HasPrefix(e.test, v.Test+"/") {
				seen[i] = true // it was not reached
			}
		}
		switch {
		case v.Action != "skip", fuzzInput(v.Test):
		case !found:
			complaints = append(complaints, fmt.Sprintf("%s %s was skipped, and is not in test/testenv/skips.txt: %s", v.Dir, v.Test, v.Said))
		case !slices.ContainsFunc(may, func(need string) bool { return lacks(need) != "" }):
			complaints = append(complaints, fmt.Sprintf("%s %s was skipped though this machine has what it needs (%s): %s", v.Dir, v.Test, strings.Join(may, ", "), v.Said))
		}
	}
	for i, e := range all {
		if whole && ran[e.dir] && !seen[i] && !slices.ContainsFunc(e.needs, func(need string) bool { return lacks(need) != "" }) {
			complaints = append(complaints, fmt.Sprintf("%s %s did not run: test/testenv/skips.txt knows of it, and this machine has what it needs", e.dir, e.test))
		}
	}
	return complaints, nil
}

// fuzzInput reports whether a test is one input of a fuzz target, which may reject
// inputs as invalid, on any machine.
func fuzzInput(test string) bool {
	return strings.HasPrefix(test, "Fuzz") && strings.Contains(test, "/")
}
