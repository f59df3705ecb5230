package tour

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const (
	module = "github.com/crisp-cri/crisp/"
	criAPI = "k8s.io/cri-api/pkg/apis"
	root   = "../.."
)

// A function is a function that the tree declares.
type function struct {
	obj      *types.Func
	decl     *ast.FuncDecl
	pkg      *pkg
	name     string                // as in outlines: "oci.Container.Stop"
	file     string                // relative to the root
	calls    []*types.Func         // and mentions, in order, each once
	messages map[types.Object]bool // the messages of oci/wire that it mentions
	forwards bool                  // it only calls another function with its own arguments
	next     []*function           // the result of graph.next, once called
}

// A pkg is one package of the tree, type-checked.
type pkg struct {
	dir   string
	types *types.Package
	info  *types.Info
	files []*ast.File
}

// A graph is the call graph of the tree.
type graph struct {
	fset         *token.FileSet
	pkgs         []*pkg
	funcs        []*function // in the order of files
	byObj        map[*types.Func]*function
	byName       map[string]*function
	answers      map[types.Object][]*types.Func // functions that answer a message of oci/wire
	types        map[string][]*types.Named      // of the tree, by the names of their methods, including embedded ones
	initializers map[*types.Var][]*types.Func   // functions in a package variable's initial value
	cri          *types.Package

	libraries map[string]*types.Package // imported by packages of the tree
}

// load type-checks the packages of the programs, once for all tests.
var load = sync.OnceValues(func() (*graph, error) {
	cmd := exec.Command("go", "list", "-deps", "-export", "-json=ImportPath,Export,Dir,GoFiles,CgoFiles",
		"-tags", "seccomp,containers_image_openpgp,nri_no_wasm,grpcnotrace", "./cmd/...")
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, stderr.String())
	}
	g := &graph{fset: token.NewFileSet(), byObj: map[*types.Func]*function{}, byName: map[string]*function{},
		answers: map[types.Object][]*types.Func{}, types: map[string][]*types.Named{}, initializers: map[*types.Var][]*types.Func{}, libraries: map[string]*types.Package{}}
	exports, ours := map[string]string{}, map[string]*types.Package{}
	foreign := importer.ForCompiler(g.fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	conf := types.Config{FakeImportC: true, Importer: importing(func(path string) (*types.Package, error) {
		if p := ours[path]; p != nil {
			return p, nil
		}
		return foreign.Import(path)
	})}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; { // a package follows those that it imports
		var listed struct {
			ImportPath, Export, Dir string
			GoFiles, CgoFiles       []string
		}
		if err := dec.Decode(&listed); err == io.EOF {
			break
		} else if err != nil {
			return nil, err
		}
		exports[listed.ImportPath] = listed.Export
		dir, own := strings.CutPrefix(listed.ImportPath, module)
		if !own {
			continue
		}
		p := &pkg{dir: dir, info: &types.Info{Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{}, Types: map[ast.Expr]types.TypeAndValue{}}}
		for _, name := range slices.Concat(listed.GoFiles, listed.CgoFiles) {
			f, err := parser.ParseFile(g.fset, filepath.Join(listed.Dir, name), nil, parser.ParseComments)
			if err != nil {
				return nil, err
			}
			p.files = append(p.files, f)
		}
		if p.types, err = conf.Check(listed.ImportPath, g.fset, p.files, p.info); err != nil {
			return nil, err
		}
		ours[listed.ImportPath] = p.types
		for _, imported := range p.types.Imports() {
			g.libraries[imported.Path()] = imported
		}
		g.pkgs = append(g.pkgs, p)
	}
	if g.cri, err = foreign.Import(criAPI + "/runtime/v1"); err != nil {
		return nil, err
	}
	slices.SortFunc(g.pkgs, func(a, b *pkg) int { return cmp.Compare(a.dir, b.dir) })
	for _, p := range g.pkgs {
		g.declare(p)
	}
	for _, f := range g.funcs {
		f.look(g)
	}
	return g, nil
})

type importing func(path string) (*types.Package, error)

func (f importing) Import(path string) (*types.Package, error) { return f(path) }

func tree(t *testing.T) *graph {
	t.Helper()
	g, err := load()
	if err != nil {
		t.Fatal(err)
	}
	if len(g.funcs) < 1000 {
		t.Fatalf("only %d functions: is this the tree?", len(g.funcs))
	}
	return g
}

// declare adds the functions and the types of a package.
func (g *graph) declare(p *pkg) {
	for _, name := range p.types.Scope().Names() {
		t, ok := p.types.Scope().Lookup(name).(*types.TypeName)
		if !ok || t.IsAlias() {
			continue
		}
		if named, ok := t.Type().(*types.Named); ok && named.TypeParams() == nil && !types.IsInterface(named) {
			methods := types.NewMethodSet(types.NewPointer(named))
			for i := range methods.Len() {
				name := methods.At(i).Obj().Name()
				g.types[name] = append(g.types[name], named)
			}
		}
	}
	for _, init := range p.info.InitOrder {
		for _, v := range init.Lhs {
			g.initializers[v] = (&function{pkg: p}).mentioned(g, init.Rhs)
		}
	}
	for _, file := range p.files {
		for _, d := range file.Decls {
			decl, ok := d.(*ast.FuncDecl)
			if !ok || decl.Body == nil {
				continue
			}
			obj := p.info.Defs[decl.Name].(*types.Func)
			path := g.fset.Position(decl.Pos()).Filename
			f := &function{obj: obj, decl: decl, pkg: p, file: p.dir + "/" + filepath.Base(path), messages: map[types.Object]bool{}}
			f.name = p.dir + "." + decl.Name.Name
			if recv := receiver(obj); recv != nil {
				f.name = p.dir + "." + recv.Obj().Name() + "." + decl.Name.Name
			}
			g.funcs = append(g.funcs, f)
			g.byObj[obj], g.byName[f.name] = f, f
		}
	}
}

// receiver returns the named type that f is a method of, nil if none.
func receiver(f *types.Func) *types.Named {
	recv := f.Signature().Recv()
	if recv == nil {
		return nil
	}
	t := recv.Type()
	if p, ok := t.(*types.Pointer); ok {
		t = p.Elem()
	}
	named, _ := types.Unalias(t).(*types.Named)
	return named
}

// look adds the functions that f calls or mentions, and the messages that it sends to the executor
// or answers.
func (f *function) look(g *graph) {
	f.forwards = forwards(f.decl)
	ast.Inspect(f.decl.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CaseClause:
			for _, label := range n.List {
				if sel, ok := label.(*ast.SelectorExpr); ok && isMessage(f.pkg.info.Uses[sel.Sel]) {
					g.answers[f.pkg.info.Uses[sel.Sel]] = f.mentioned(g, &ast.BlockStmt{List: n.Body})
				}
			}
		case *ast.Ident:
			if used := f.pkg.info.Uses[n]; isMessage(used) {
				f.messages[used] = true
			}
		}
		return true
	})
	f.calls = f.mentioned(g, f.decl.Body)
}

// mentioned returns the functions that code calls or mentions, including through package variables,
// in order, each once.
func (f *function) mentioned(g *graph, code ast.Node) (list []*types.Func) {
	ast.Inspect(code, func(n ast.Node) bool {
		id, ok := n.(*ast.Ident)
		if !ok {
			return true
		}
		var found []*types.Func
		switch used := f.pkg.info.Uses[id].(type) {
		case *types.Func:
			found = []*types.Func{used.Origin()}
		case *types.Var:
			found = g.initializers[used]
		}
		for _, obj := range found {
			if !slices.Contains(list, obj) {
				list = append(list, obj)
			}
		}
		return true
	})
	return list
}

// isMessage reports whether an object is the constant of a message between crispd and its
// executor.
func isMessage(o types.Object) bool {
	c, ok := o.(*types.Const)
	return ok && c.Pkg() != nil && c.Pkg().Path() == module+"oci/wire" &&
		(strings.HasPrefix(c.Name(), "Method") || strings.HasPrefix(c.Name(), "Event"))
}

// forwards reports whether a function is a single call with its own arguments only.
func forwards(decl *ast.FuncDecl) bool {
	if len(decl.Body.List) != 1 {
		return false
	}
	var e ast.Expr
	switch s := decl.Body.List[0].(type) {
	case *ast.ReturnStmt:
		if len(s.Results) != 1 {
			return false
		}
		e = s.Results[0]
	case *ast.ExprStmt:
		e = s.X
	}
	call, ok := e.(*ast.CallExpr)
	return ok && !slices.ContainsFunc(call.Args, func(arg ast.Expr) bool {
		switch arg.(type) {
		case *ast.Ident, *ast.SelectorExpr:
			return false
		}
		return true
	})
}

// next returns the functions that f leads to: those it calls, the implementations of interfaces
// that it calls, and the handlers of its messages to the executor and the runtime. Functions that
// only forward are skipped.
func (g *graph) next(f *function) []*function {
	if f.next != nil {
		return f.next
	}
	f.next = []*function{}
	for todo := []*function{f}; len(todo) > 0; todo = todo[1:] {
		var called []*types.Func
		for _, c := range todo[0].calls {
			called = append(called, g.meant(c)...)
		}
		for word := range todo[0].messages {
			called = append(called, g.answers[word]...)
		}
		for _, obj := range called {
			to := g.byObj[obj]
			if to == nil || to == f || slices.Contains(f.next, to) {
				continue
			}
			f.next = append(f.next, to)
			if to.forwards {
				todo = append(todo, to)
			}
		}
	}
	return f.next
}

// meant returns the functions of the tree that a call of f may reach.
func (g *graph) meant(f *types.Func) []*types.Func {
	recv := receiver(f)
	if recv == nil || !types.IsInterface(recv) {
		return []*types.Func{f}
	}
	var list []*types.Func
	switch {
	case f.Pkg() == nil: // error's
		return nil
	case strings.HasPrefix(f.Pkg().Path(), criAPI):
		if handler := g.byName["server.Server."+f.Name()]; handler != nil {
			list = append(list, handler.obj) // over the socket
		}
	case !strings.HasPrefix(f.Pkg().Path(), module):
		return nil // such as io.Writer, which almost everything implements
	}
	iface := recv.Underlying().(*types.Interface)
	for _, t := range g.types[f.Name()] {
		if m, _, _ := types.LookupFieldOrMethod(t, true, f.Pkg(), f.Name()); m != nil && types.Implements(types.NewPointer(t), iface) {
			list = append(list, m.(*types.Func).Origin())
		}
	}
	return list
}

// leads reports whether a leads to b, with at most one function in between, or both mention the
// same message.
func (g *graph) leads(a, b *function) bool {
	for _, f := range append(slices.Clone(g.next(a)), a) {
		if slices.Contains(g.next(f), b) {
			return true
		}
	}
	for word := range a.messages {
		if b.messages[word] {
			return true
		}
	}
	return false
}

// calledBy reports whether a library may call f: its type implements an interface of that library
// with such a method.
func (g *graph) calledBy(f *function, library string) bool {
	recv := receiver(f.obj)
	lib := g.libraries[library]
	if recv == nil || lib == nil {
		return false
	}
	return slices.ContainsFunc(lib.Scope().Names(), func(name string) bool {
		iface, ok := lib.Scope().Lookup(name).Type().Underlying().(*types.Interface)
		method, _, _ := types.LookupFieldOrMethod(lib.Scope().Lookup(name).Type(), true, lib, f.obj.Name())
		return ok && method != nil && types.Implements(types.NewPointer(recv), iface)
	})
}

// matters reports whether f matters to other packages: it is exported, and more than a getter.
func (f *function) matters() bool {
	if recv := receiver(f.obj); !f.obj.Exported() || recv != nil && !recv.Obj().Exported() {
		return false
	}
	ret, ok := f.decl.Body.List[0].(*ast.ReturnStmt)
	return !ok || slices.ContainsFunc(ret.Results, func(e ast.Expr) bool {
		_, calls := e.(*ast.CallExpr)
		return calls
	})
}

// link returns f as a link for the documents.
func (f *function) link() string {
	name := f.name[strings.LastIndex(f.name, "/")+1:]
	return fmt.Sprintf("[%s](../%s)", "`"+name+"`", f.file)
}
