package testenv

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

// missing returns the tests of all that are not in the tree: a function of that name, and for a subtest
// a script or, in the package's tests, a string.
func missing(tree fs.FS, all []entry) (list []string, err error) {
	for _, e := range all {
		top, sub, _ := strings.Cut(e.test, "/")
		files, err := fs.Glob(tree, path.Join(e.dir, "*_test.go"))
		if err != nil {
			return nil, err
		}
		scripts, err := fs.Glob(tree, path.Join(e.dir, "script", sub+".*"))
		if err != nil {
			return nil, err
		}
		hasTop, hasSub := false, sub == "" || len(scripts) > 0
		for _, name := range files {
			src, err := fs.ReadFile(tree, name)
			if err != nil {
				return nil, err
			}
			f, err := parser.ParseFile(token.NewFileSet(), name, src, 0)
			if err != nil {
				return nil, err
			}
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.FuncDecl:
					ok, _ := path.Match(top, n.Name.Name)
					hasTop = hasTop || ok && n.Recv == nil
				case *ast.BasicLit:
					hasSub = hasSub || n.Kind == token.STRING && n.Value == strconv.Quote(sub)
				}
				return true
			})
		}
		if !hasTop || !hasSub {
			list = append(list, fmt.Sprintf("%s %s", e.dir, e.test))
		}
	}
	return list, nil
}

// A test that got another name would be found by Judge only after all tests have run.
func TestListedTestsExist(t *testing.T) {
	all, err := entries(listed)
	if err != nil {
		t.Fatal(err)
	}
	list, err := missing(os.DirFS("../.."), all)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range list {
		t.Errorf("skips.txt: there is no test %s", test)
	}
}

func TestMissingTestsAreFound(t *testing.T) {
	tree := fstest.MapFS{
		"a/a_test.go":       {Data: []byte("package a\nfunc TestOne() { run(\"x\") }\nfunc (t) TestMethod() {}\n")},
		"a/script/boot.txt": {},
		"b/a.go":            {Data: []byte("package b\nfunc TestTwo() {}\n")},
	}
	for test, want := range map[string]int{
		"a TestOne": 0, "a TestO*": 0, "a TestOne/x": 0, "a TestOne/boot": 0, // whichever runs the scripts
		"a TestOn": 1, "a TestTwo": 1, "a TestMethod": 1, "a TestOne/y": 1, "a TestTwo/x": 1, "b TestTwo": 1, "c TestOne": 1,
	} {
		all, err := entries(test + " criu")
		if err != nil {
			t.Fatal(err)
		}
		got, err := missing(tree, all)
		if diff := cmp.Diff([]string{test}[:want], append([]string{}, got...)); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", test, err, diff)
		}
	}
}
