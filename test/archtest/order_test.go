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
		{"manifest", "podsync", "pull", "volume"},
		// Packages that use a pod's plan, or a manifest.
		{"autoupdate", "podfiles", "source", "status"},
		// The translation of a pod, and its probes.
		{"podspec", "probe"},
		// The runtime, and the workers that act on it.
		{"criruntime"},
		{"node"},
		{"worker"},
		// The maintenance of the node.
		{"housekeeping"},
		// The assembly.
		{"."},
	},
	"apiserver": {
		{"listen", "watchcache", "why", "workload"},
		{"startup", "store", "table"},
		{"api"},
		{"kubectl", "page"},
		{"."},
	},
	"image": {
		{"blob", "erofs"},
		{"layer", "progress", "registry"},
		{"rootfs"},
		{"."},
	},
	"oci": {
		{"wire", "executor/fastinit", "executor/gate", "executor/oomscore", "executor/poll", "executor/seal"},
		{"executor/proc", "executor/shim", "executor/stdio"},
		{"executor/limits"},
		{"executor/runtime"},
		{".", "executor"},
	},
	"server": {
		{"cadvisor", "cdi", "hooks", "loaderapi", "nri", "selinux", "spec", "telemetry"},
		{".", "loaderapi/loaderclient"},
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

// A room of the executor is a package below it, which knows nothing of it: neither its table nor a
// container. walls are what else some packages may not know: libcontainer, and rooms by their names.
var walls = []struct {
	dir   string
	never []string
	why   string
}{
	{"oci/executor", []string{libcontainer, "fastinit"}, "how containers are started is the runtimes' concern"},
	{"oci/executor/gate", []string{libcontainer, "limits", "poll", "proc", "runtime", "stdio"}, "everything is behind the gate"},
	{"oci/executor/limits", []string{libcontainer, "fastinit", "stdio"}, "limits are of a cgroup"},
	{"oci/executor/poll", []string{libcontainer, "gate", "limits", "proc", "runtime", "stdio"}, "a descriptor has no owner there"},
	{"oci/executor/proc", []string{libcontainer, "fastinit", "limits", "stdio"}, "a process is found and ended without its container"},
	{"oci/executor/shim", []string{libcontainer, "fastinit", "gate", "limits", "proc", "runtime", "stdio"}, "a shim is a program at a socket"},
	{"oci/executor/stdio", []string{libcontainer, "fastinit", "limits", "proc"}, "stdio has a name and a gate, and no process"},
}

const libcontainer = "github.com/opencontainers/runc"

func TestRoomsOfTheExecutor(t *testing.T) {
	const executor = "oci/executor"
	for _, f := range tree(t) {
		if f.test || !below(f.dir, executor) {
			continue
		}
		for _, path := range imports(f.ast) {
			if path == module+"/"+executor {
				t.Errorf("%s imports the executor: a room knows nothing of it", f.path)
			}
			room, _ := strings.CutPrefix(path, module+"/"+executor+"/")
			for _, w := range walls {
				if f.dir == w.dir && (slices.Contains(w.never, room) || below(path, libcontainer) && slices.Contains(w.never, libcontainer)) {
					t.Errorf("%s imports %s: %s", f.path, path, w.why)
				}
			}
		}
	}
}

// functions are the agent's and the API's fields that hold a function, each with the reason why it is no
// interface.
var functions = map[string]string{
	"agent.Options.Connect":          "the caller's choice of a runtime",
	"housekeeping.collector.now":     "a clock, for tests",
	"housekeeping.evictor.now":       "a clock, for tests",
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
		if f.test || !belowAny(f.dir, []string{"agent", "apiserver"}) {
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
var pure = []string{"server/spec", "agent/podspec", "agent/podsync", "apiserver/why", "internal/pulls"}

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

// One file of server holds one RPC, so that the directory lists them. The six lists that are
// sent as streams stand together in streams.go: each only sends what the file of its list finds.
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
	if len(rpcs) < 35 {
		t.Errorf("only %d files with RPCs", len(rpcs))
	}
	for path, names := range rpcs {
		isStream := func(rpc string) bool { return strings.HasPrefix(rpc, "Stream") }
		if path == "server/streams.go" {
			names = slices.DeleteFunc(names, isStream)
		}
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
