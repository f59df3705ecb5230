package archtest

import (
	"go/ast"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// layers are the packages of a directory, from the lowest to the highest: a package imports
// those of lower layers only. A new package gets the lowest layer that its imports allow.
var layers = map[string][][]string{
	"agent": {
		// Packages about one thing, which know no other package.
		{"cgroup", "event", "httpget", "idrange", "imagegc", "keyring", "listen", "logrotate", "manifest", "node", "page/terminal", "podsync", "pullwatch", "readiness", "volume"},
		// Packages that use a pod's plan, or a manifest.
		{"evict", "pleg", "podfiles", "probe", "pullrecords", "source", "status", "stopped", "watchcache", "why", "worker", "workload"},
		// The desired state, and its translation.
		{"admit", "desired", "podspec", "startup", "store"},
		// The runtime, and the workers that act on it.
		{"criruntime", "ephemeral", "podworkers", "table"},
		// The API and its clients, and the maintenance of the node.
		{"api", "criconn", "housekeeping", "nodepods"},
		{"admission", "api/kubectl", "containermanager", "host", "page"},
		// The assembly.
		{"."},
	},
	"image": {
		{"blob", "erofs"},
		{"layer", "progress", "registry"},
		{"rootfs"},
		{"."},
		{"imagetest"},
	},
	"oci": {
		{"wire", "executor/fastinit", "executor/oomscore"},
		{".", "executor"},
		{"ocitest"},
	},
	"server": {
		{"cadvisor", "cdi", "hooks", "loaderapi", "nri", "selinux", "spec", "telemetry"},
		{"."},
	},
}

func TestLayers(t *testing.T) {
	for top, order := range layers {
		at := map[string]int{} // directory → layer
		for i, layer := range order {
			for _, name := range layer {
				at[filepath.Join(top, name)] = i
			}
		}
		seen := map[string]bool{}
		for _, f := range tree(t) {
			if f.test || !below(f.dir, top) {
				continue
			}
			own, ok := at[f.dir]
			if !ok && !seen[f.dir] {
				t.Errorf("%s is in no layer of %s", f.dir, top)
			}
			seen[f.dir] = true
			if !ok {
				continue
			}
			for _, path := range imports(f.ast) {
				dir, ours := strings.CutPrefix(path, module+"/")
				if ours && below(dir, top) && at[dir] >= own {
					t.Errorf("%s imports %s, which is in no lower layer of %s", f.path, dir, top)
				}
			}
		}
		for dir := range at {
			if !seen[dir] {
				t.Errorf("there is no package %s, which is in a layer of %s", dir, top)
			}
		}
	}
}

// functions are the agent's fields that hold a function, each with the reason why it is no
// interface.
var functions = map[string]string{
	"agent.Options.Connect":          "the caller's choice of a runtime",
	"imagegc.Collector.now":          "a clock, for tests",
	"evict.Manager.now":              "a clock, for tests",
	"listen.keptCertificate.renewed": "the listener's address is known to the caller",
	"manifest.kind.complete":         "a table of kinds",
	"node.Addresses.look":            "given or found out",
	"table.Column.cell":              "a table of columns",
	"watchcache.Item.Make":           "an object that is made when it is asked for",
}

// Parts of the agent get their dependencies as small interfaces when they are made: for a field
// that holds a function, it is unclear who sets it, and when.
func TestFunctionFields(t *testing.T) {
	found := map[string]bool{}
	for _, f := range tree(t) {
		if f.test || !below(f.dir, "agent") {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			of, ok := spec.Type.(*ast.StructType)
			if !ok {
				return true
			}
			for _, field := range of.Fields.List {
				if _, ok := field.Type.(*ast.FuncType); !ok {
					continue
				}
				for _, name := range field.Names {
					name := f.ast.Name.Name + "." + spec.Name.Name + "." + name.Name
					if found[name] = true; functions[name] == "" {
						t.Errorf("%s: %s holds a function: take an interface", fset.Position(field.Pos()), name)
					}
				}
			}
			return true
		})
	}
	for name := range functions {
		if !found[name] {
			t.Errorf("there is no %s that holds a function", name)
		}
	}
}

// pure are the packages that only translate: their results depend on their arguments, not on the
// machine.
var pure = []string{"server/spec", "agent/podspec", "agent/podsync", "apiserver/why", "apiserver/page/terminal", "internal/pulls"}

// A pure package imports nothing that accesses files, processes or the network, and of packages
// that offer both, it uses only the rest.
func TestPurePackages(t *testing.T) {
	never := []string{"os", "io/ioutil", "io/fs", "syscall", "net", "net/http", module + "/internal/atomicfile", module + "/internal/kernel"}
	for _, f := range tree(t) {
		if f.test || !slices.Contains(pure, f.dir) {
			continue
		}
		for _, path := range imports(f.ast) {
			if path != "net/netip" && belowAny(path, never) {
				t.Errorf("%s imports %s: the package is pure", f.path, path)
			}
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			name := sel.Sel.Name
			switch pkg, _ := sel.X.(*ast.Ident); {
			case pkg == nil:
			case pkg.Name == "unix" && name != strings.ToUpper(name), // not a constant
				pkg.Name == "filepath" && slices.Contains([]string{"Abs", "EvalSymlinks", "Glob", "Walk", "WalkDir"}, name),
				pkg.Name == "time" && name == "Now":
				t.Errorf("%s uses %s.%s: the package is pure", fset.Position(n.Pos()), pkg.Name, name)
			}
			return true
		})
	}
}

// One file of server holds one RPC, so that the directory lists them.
func TestOneRPCPerFile(t *testing.T) {
	rpcs := map[string][]string{} // by file
	for _, f := range tree(t) {
		if f.test || f.dir != "server" {
			continue
		}
		for _, d := range f.ast.Decls {
			if decl, ok := d.(*ast.FuncDecl); ok && decl.Recv != nil && decl.Name.IsExported() && takesRequest(decl) {
				rpcs[f.path] = append(rpcs[f.path], decl.Name.Name)
			}
		}
	}
	if len(rpcs) < 40 {
		t.Errorf("only %d files with RPCs", len(rpcs))
	}
	for path, names := range rpcs {
		if len(names) > 1 {
			t.Errorf("%s holds %s: one RPC a file", path, strings.Join(names, ", "))
		}
	}
}

// takesRequest reports whether a parameter of a method is a request of CRI.
func takesRequest(decl *ast.FuncDecl) bool {
	return slices.ContainsFunc(decl.Type.Params.List, func(p *ast.Field) bool {
		star, ok := p.Type.(*ast.StarExpr)
		if !ok {
			return false
		}
		sel, ok := star.X.(*ast.SelectorExpr)
		return ok && sel.X.(*ast.Ident).Name == "cri" && strings.HasSuffix(sel.Sel.Name, "Request")
	})
}
