package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/test/testenv"
)

// A step brings the steps that it needs, and a boot without other steps is left out.
func TestChosen(t *testing.T) {
	for _, c := range []struct {
		o    options
		boot string
		want []string
	}{
		{options{steps: "^package$"}, "apparmor", []string{"node", "install", "package"}},
		{options{steps: "^package$"}, "selinux", nil},
		{options{steps: "^scripts$", boot: "selinux"}, "selinux", []string{"node", "install", "enforce", "scripts"}},
		{options{steps: "^scripts$", boot: "selinux"}, "apparmor", nil},
		{options{steps: "^critest$", quick: true}, "apparmor", nil},
		{options{quick: true}, "selinux", nil},
	} {
		i := slices.IndexFunc(boots, func(b boot) bool { return b.name == c.boot })
		if got, err := c.o.chosen(boots[i]); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%+v of %s: %v, %v, want %v", c.o, c.boot, got, err, c.want)
		}
	}
}

// Every package with a test that needs root is tested on the node: code that uses the kernel is
// tested on the one that users have.
func TestEveryKernelPackage(t *testing.T) {
	const top = "../.."
	root := regexp.MustCompile(`os\.Gete?uid\(\)`)
	tested := map[string]bool{}
	for _, b := range boots {
		for _, s := range b.steps {
			if run, ok := s.do.(tests); ok && s.in&full != 0 && strings.HasPrefix(s.name, "all-") {
				tested[run.dir] = true
			}
		}
	}
	if err := filepath.WalkDir(top, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() {
			if path != top && (strings.HasPrefix(e.Name(), ".") || testenv.Exists(filepath.Join(path, "go.mod"))) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		dir, _ := filepath.Rel(top, filepath.Dir(path))
		if root.Match(text) && !tested[dir] && dir != "test/vm" {
			t.Errorf("%s needs root: boots.go has no step all-… for %s", path, dir)
			tested[dir] = true
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if len(tested) < 10 {
		t.Errorf("only %d packages are tested", len(tested))
	}
}

// Every test in the table exists in the tree.
func TestNamedTestsAreThere(t *testing.T) {
	named := 0
	for _, b := range boots {
		for _, s := range b.steps {
			run, ok := s.do.(tests)
			if c, is := s.do.(comparison); is {
				run, ok = c.tests, true
			}
			if !ok {
				continue
			}
			dir := filepath.Join("../..", run.dir)
			files, _ := filepath.Glob(filepath.Join(dir, "*_test.go"))
			var code strings.Builder
			for _, f := range files {
				text, err := os.ReadFile(f)
				if err != nil {
					t.Fatal(err)
				}
				code.Write(text)
			}
			for _, name := range run.must {
				named++
				script, is := strings.CutPrefix(name, "TestScript/")
				if is && !testenv.Exists(filepath.Join(dir, "script", script+".txtar")) || !is && !strings.Contains(code.String(), "\nfunc "+name+"(t *testing.T) {") {
					t.Errorf("boot %s, step %s: %s has no %s", b.name, s.name, run.dir, name)
				}
			}
		}
	}
	if named < 10 {
		t.Errorf("only %d tests are named", named)
	}
}

// A listed test that is skipped or missing fails the step.
func TestMissing(t *testing.T) {
	step := exactly("none", "TestA", "TestB")
	verdict := func(test, action string) testenv.Verdict {
		return testenv.Verdict{Dir: "none", Test: test, Action: action, Said: "why"}
	}
	for _, c := range []struct {
		verdicts []testenv.Verdict
		want     string
	}{
		{[]testenv.Verdict{verdict("TestA", "pass"), verdict("TestB", "pass")}, ""},
		{[]testenv.Verdict{verdict("TestA", "pass"), verdict("TestB/x", "pass")}, "none TestB did not run: is it called so?"},
		{[]testenv.Verdict{verdict("TestA", "pass"), verdict("TestB", "skip")},
			"none TestB was skipped, and is not in test/testenv/skips.txt: why\nnone TestB was skipped, and must run on this node: why"},
	} {
		got := ""
		if err := step.missing(c.verdicts, false); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%v: %q, want %q", c.verdicts, got, c.want)
		}
	}
	for pattern, step := range map[string]tests{"^(TestA|TestB)$": step, "^TestScript$/^(a|b)$": exactly("none", "TestScript/a", "TestScript/b")} {
		if step.run != pattern {
			t.Errorf("-run is %s, want %s", step.run, pattern)
		}
	}
}
