package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A step that others need comes with them, and a boot with nothing else does not
// happen.
func TestChosen(t *testing.T) {
	for _, c := range []struct {
		o    options
		boot string
		want []string
	}{
		{options{steps: "^package$"}, "apparmor", []string{"install", "package"}},
		{options{steps: "^package$"}, "selinux", nil},
		{options{steps: "^scripts$", boot: "selinux"}, "selinux", []string{"install", "enforce", "scripts"}},
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

// Every package with a test that needs root is tested on the node: what touches the
// kernel is to be seen on the one that users have.
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
			if path != top && (strings.HasPrefix(e.Name(), ".") || exists(filepath.Join(path, "go.mod"))) {
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

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
