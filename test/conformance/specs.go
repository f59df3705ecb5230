// Specs tells which specs of critest did not pass, or were not there, that must.
//
//	specs LIST REPORT
//
// LIST is specs.txt beside this file: in each line the full name of a spec, which begins
// with "[k8s.io]", and before it what the spec needs of the machine (internal/testenv).
// REPORT is ginkgo's in JSON. Of a run with a focus only what that matches is asked for.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/internal/testenv"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "specs:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: specs LIST REPORT")
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
	missing, more, err := compare(string(list), suites, testenv.Lacks)
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

// A suite is what ginkgo reports, as far as it is of interest.
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

// compare returns the specs that must pass and did not, with what they did instead, and
// those that passed and are in no list.
func compare(list string, suites []suite, lacks func(need string) string) (missing, more []string, err error) {
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
				continue // of two that are called alike, the worse
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
		if !chosen.MatchString(name) || slices.ContainsFunc(strings.Fields(line[:i]), func(need string) bool { return lacks(need) != "" }) {
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
