package archtest

import (
	"go/ast"
	"testing"
)

// Longer code does several things: a function beyond longestFunc lines is hard to understand as a
// whole, and a type with more than mostMethods has several tasks. CRI's RuntimeService alone has
// 37.
const (
	longestFunc = 80
	mostMethods = 40
)

func TestSizes(t *testing.T) {
	methods := map[string]int{} // exported ones, by directory and type
	for _, f := range tree(t) {
		if f.test {
			continue
		}
		for _, d := range f.ast.Decls {
			decl, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if lines := fset.Position(decl.End()).Line - fset.Position(decl.Pos()).Line + 1; lines > longestFunc {
				t.Errorf("%s: %s has %d lines", fset.Position(decl.Pos()), decl.Name.Name, lines)
			}
			if name := receiver(decl); name != "" && decl.Name.IsExported() {
				methods[f.dir+"."+name]++
			}
		}
	}
	for name, n := range methods {
		if n > mostMethods {
			t.Errorf("%s has %d exported methods", name, n)
		}
	}
}

// receiver returns the name of the type that a function is a method of, "" if of none.
func receiver(decl *ast.FuncDecl) string {
	if decl.Recv == nil {
		return ""
	}
	of := decl.Recv.List[0].Type
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	if generic, ok := of.(*ast.IndexExpr); ok {
		of = generic.X
	}
	name, _ := of.(*ast.Ident)
	if name == nil {
		return ""
	}
	return name.Name
}
