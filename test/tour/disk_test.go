package tour

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/constant"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
)

// places are the directories behind the names root and state, by package and name in lower case.
// Without an entry, they are crispd's.
var places = map[string]string{
	"root": "/var/lib/crisp", "state": "/run/crisp",
	"image root": "/var/lib/crisp/images", "image state": "/run/crisp/image",
	"agent root": "/var/lib/crisp-agent",
}

// A file is a path below one of the places, and the functions that name it.
type file struct {
	path string
	in   []*function
}

// files returns the paths that the tree makes of a place and a name, and the kinds of records.
func (g *graph) files() []file {
	found := map[string][]*function{}
	for _, f := range g.funcs {
		ast.Inspect(f.decl.Body, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if p := f.path(call); p != "" && !slices.Contains(found[p], f) {
				found[p] = append(found[p], f)
			}
			return true
		})
	}
	var list []file
	for p, in := range found {
		list = append(list, file{p, in})
	}
	slices.SortFunc(list, func(a, b file) int { return cmp.Compare(a.path, b.path) })
	return list
}

// path returns the path that filepath.Join(o.Root, "a", "b") makes, or that Records.Keep("a", …)
// writes to.
func (f *function) path(call *ast.CallExpr) string {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || len(call.Args) < 2 {
		return ""
	}
	word := func(e ast.Expr) string {
		if v := f.pkg.info.Types[e].Value; v != nil && v.Kind() == constant.String {
			return constant.StringVal(v)
		}
		return ""
	}
	switch called := f.pkg.info.Uses[sel.Sel]; {
	case called == nil || called.Pkg() == nil:
	case called.Pkg().Path() == "path/filepath" && called.Name() == "Join":
		place := f.place(call.Args[0])
		if place == "" || word(call.Args[1]) == "" {
			return ""
		}
		for _, arg := range call.Args[1:] {
			if word(arg) == "" {
				return path.Join(place, "…")
			}
			place = path.Join(place, word(arg))
		}
		return place
	case (called.Name() == "Save" || called.Name() == "Keep") && word(call.Args[0]) != "":
		return path.Join(places["root"], word(call.Args[0]), "<id>", "record.json")
	}
	return ""
}

// place returns the directory that an expression such as o.Root names, "" if none.
func (f *function) place(e ast.Expr) string {
	name := ""
	switch e := e.(type) {
	case *ast.SelectorExpr: // o.Root
		if e.Sel.IsExported() {
			name = e.Sel.Name
		}
	case *ast.StarExpr: // *state, a flag
		if id, ok := e.X.(*ast.Ident); ok {
			name = id.Name
		}
	}
	name = strings.ToLower(name)
	top, _, _ := strings.Cut(f.pkg.dir, "/")
	return cmp.Or(places[top+" "+name], places[name])
}

func table(files []file) string {
	var b strings.Builder
	b.WriteString("| path | named in |\n|---|---|\n")
	for _, f := range files {
		var in []string
		for _, f := range f.in {
			in = append(in, f.link())
		}
		fmt.Fprintf(&b, "| `%s` | %s |\n", f.path, strings.Join(in, ", "))
	}
	return b.String()
}

// docs/hacking.md mentions every path that a daemon uses below its directories.
func TestDiskIsDocumented(t *testing.T) {
	doc, err := os.ReadFile(root + "/docs/hacking.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := bytes.Cut(doc, []byte("## Where things are on disk"))
	if !ok {
		t.Fatal("docs/hacking.md has no such section")
	}
	files := tree(t).files()
	if len(files) < 20 {
		t.Fatalf("only %d paths found", len(files))
	}
	for _, f := range files {
		for name := range strings.SplitSeq(f.path, "/") {
			if !bytes.Contains(section, []byte(name)) {
				t.Errorf("docs/hacking.md does not mention %s, which %s names", f.path, names(f.in))
				break
			}
		}
	}
}
