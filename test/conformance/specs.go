// Specs reports which of the specs that must pass in critest did not, or did not run.
//
//	specs LIST REPORT SKIP
//
// LIST is specs.txt beside this file: each line has the full name of a spec, which begins
// with "[k8s.io]", after what the spec needs of the machine (test/testenv). REPORT is
// ginkgo's in JSON. SKIP is a regular expression for the names of specs that were left out, "" for
// none. For a run with a focus, only specs that it matches are required.
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/test/testenv"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "specs:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 3 {
		return errors.New("usage: specs LIST REPORT SKIP")
	}
	skip, err := regexp.Compile(cmp.Or(args[2], "^$"))
	if err != nil {
		return err
	}
	list, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	data, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	var suites []suite
	if err := json.Unmarshal(data, &suites); err != nil {
		return fmt.Errorf("%s: %w", args[1], err)
	}
	missing, more, err := compare(string(list), suites, skip, testenv.Lacks)
	if err != nil {
		return err
	}
	for _, name := range more {
		fmt.Println("passed, and is not in specs.txt:", name)
	}
	for _, m := range missing {
		fmt.Println("MISSING", m)
	}
	if len(missing) > 0 {
		return fmt.Errorf("%d specs that must pass did not", len(missing))
	}
	return nil
}

// A suite has the parts of ginkgo's report that are used here.
type suite struct {
	SuiteConfig struct{ FocusStrings []string }
	SpecReports []struct {
		ContainerHierarchyTexts []string
		LeafNodeType            string
		LeafNodeText            string
		State                   string
		Failure                 struct{ Message string }
	}
}

// prefix begins the name of each spec.
const prefix = "[k8s.io]"

// compare returns the required specs that did not pass, with their state, and those that passed
// without being listed. What skip matches is not required.
func compare(list string, suites []suite, skip *regexp.Regexp, lacks func(need string) string) (missing, more []string, err error) {
	state := map[string]string{}
	var focus []string
	for _, s := range suites {
		focus = append(focus, s.SuiteConfig.FocusStrings...)
		for _, r := range s.SpecReports {
			if r.LeafNodeType != "It" {
				continue
			}
			name := strings.Join(append(slices.Clone(r.ContainerHierarchyTexts), r.LeafNodeText), " ")
			if had, ok := state[name]; ok && had != "passed" {
				continue // of two with the same name, the worse
			}
			state[name] = strings.TrimSpace(r.State + " " + r.Failure.Message)
		}
	}
	chosen, err := regexp.Compile(strings.Join(focus, "|"))
	if err != nil {
		return nil, nil, err
	}
	listed := map[string]bool{}
	for line := range strings.Lines(list) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		i := strings.Index(line, prefix)
		if i < 0 {
			return nil, nil, fmt.Errorf("specs.txt: no spec begins with %s in %q", prefix, line)
		}
		name := line[i:]
		listed[name] = true
		if !chosen.MatchString(name) || skip.MatchString(name) || slices.ContainsFunc(strings.Fields(line[:i]), func(need string) bool { return lacks(need) != "" }) {
			continue
		}
		switch how, ok := state[name]; {
		case !ok:
			missing = append(missing, name+": critest has no such spec")
		case how != "passed":
			missing = append(missing, name+": "+how)
		}
	}
	for name, how := range state {
		if how == "passed" && !listed[name] {
			more = append(more, name)
		}
	}
	slices.Sort(more)
	return missing, more, nil
}
