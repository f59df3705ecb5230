package tour

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"path/filepath"
	"strings"
)

// machines draws each state machine of the tree: a table of the state that follows from
// each state and event, as in oci/state.go.
func (g *graph) machines() string {
	var b strings.Builder
	for _, p := range g.pkgs {
		for _, file := range p.files {
			ast.Inspect(file, func(n ast.Node) bool {
				lit, ok := n.(*ast.CompositeLit)
				if !ok {
					return true
				}
				if state := stateOf(p.info.Types[lit].Type); state != nil {
					draw(&b, p, g.fset.Position(lit.Pos()).Filename, state.Obj().Name(), lit)
				}
				return true
			})
		}
	}
	return b.String()
}

// stateOf returns S of map[S]map[event]S, nil for any other type.
func stateOf(t types.Type) *types.Named {
	outer, ok := t.(*types.Map)
	if !ok {
		return nil
	}
	inner, ok := outer.Elem().(*types.Map)
	if !ok || inner.Elem() != outer.Key() {
		return nil
	}
	state, _ := outer.Key().(*types.Named)
	return state
}

func draw(b *strings.Builder, p *pkg, file, state string, table *ast.CompositeLit) {
	fmt.Fprintf(b, "`%s.%s`, in %s:\n\n```mermaid\nstateDiagram-v2\n", p.dir, state, link(p.dir+"/"+filepath.Base(file)))
	for i, row := range table.Elts {
		row := row.(*ast.KeyValueExpr)
		from := types.ExprString(row.Key)
		if i == 0 {
			fmt.Fprintf(b, "    [*] --> %s\n", from)
		}
		for _, move := range row.Value.(*ast.CompositeLit).Elts {
			move := move.(*ast.KeyValueExpr)
			fmt.Fprintf(b, "    %s --> %s: %s\n", from, types.ExprString(move.Value), types.ExprString(move.Key))
		}
	}
	b.WriteString("```\n\n")
}

// drawings returns the drawings in the comments of packages and types, in order.
func (g *graph) drawings() string {
	var b strings.Builder
	for _, p := range g.pkgs {
		for _, file := range p.files {
			name := p.dir + "/" + filepath.Base(g.fset.Position(file.Pos()).Filename)
			show(&b, name, file.Doc)
			for _, d := range file.Decls {
				if d, ok := d.(*ast.GenDecl); ok && d.Tok == token.TYPE {
					show(&b, name, d.Doc)
				}
			}
		}
	}
	return b.String()
}

// show writes the indented lines of a comment, if some of them have box-drawing characters.
func show(b *strings.Builder, file string, comment *ast.CommentGroup) {
	var drawing []string
	end := func() {
		if text := strings.Join(drawing, "\n"); strings.ContainsAny(text, "─│") {
			fmt.Fprintf(b, "In %s:\n\n```text\n%s\n```\n\n", link(file), text)
		}
		drawing = nil
	}
	for line := range strings.SplitSeq(comment.Text(), "\n") {
		if indented, ok := strings.CutPrefix(line, "\t"); ok {
			drawing = append(drawing, indented)
		} else {
			end()
		}
	}
	end()
}
