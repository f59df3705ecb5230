package archtest

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/crisp-cri/crisp"

// A file is one Go file of the tree, parsed.
type file struct {
	path string // relative to the root
	dir  string
	test bool
	ast  *ast.File
}

var fset = token.NewFileSet()

func tree(t *testing.T) []file {
	t.Helper()
	files, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 20 {
		t.Fatalf("only %d Go files found: is this the tree?", len(files))
	}
	return files
}

// parsed are the files of the tree, parsed once for all tests.
var parsed = sync.OnceValues(func() (files []file, err error) {
	root := filepath.Join("..", "..")
	err = filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); rel != "." && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin") {
				return filepath.SkipDir
			}
			if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil && rel != "." {
				return filepath.SkipDir // a module of its own
			}
			return nil
		}
		if !strings.HasSuffix(rel, ".go") {
			return nil
		}
		f, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		files = append(files, file{rel, filepath.Dir(rel), strings.HasSuffix(rel, "_test.go"), f})
		return nil
	})
	return files, err
})

func imports(f *ast.File) []string {
	var paths []string
	for _, spec := range f.Imports {
		path, _ := strconv.Unquote(spec.Path.Value)
		paths = append(paths, path)
	}
	return paths
}

// below reports whether path is prefix or lies below it.
func below(path, prefix string) bool {
	return path == prefix || strings.HasPrefix(path, prefix+"/")
}

func belowAny(path string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return below(path, p) })
}

// only lists where in the tree an import may occur, and why. It applies to tests, too, except in
// directories of tests.
var only = []struct {
	imported string
	in       []string // files or directories
	why      string
}{
	{"google.golang.org/grpc/codes", []string{"server/interceptor.go", "oci/executor/shim/task_test.go", "agent", "apiserver", "cmd/crisp", "test"},
		"an error gets its status code in one place"},
	{"google.golang.org/grpc/status", []string{"server/interceptor.go", "oci/executor/shim/task_test.go", "agent", "apiserver", "cmd/crisp", "test"},
		"an error gets its status code in one place"},
	{"github.com/opencontainers/runc", []string{"oci/executor", "cmd/crisp-executor"},
		"libcontainer runs in the executor and nowhere else"},
	{"k8s.io/cri-api", []string{"server", "streaming", "agent", "apiserver", "cmd/crisp", "test"},
		"CRI is the edge's language, not the core's"},
	{"github.com/containerd/containerd", []string{"server/cadvisor", "cmd/crispd/shim_test.go", "oci/executor/shim", "test/shimtest"}, "one package speaks containerd's API; tests compare the shims' with it"},
	{"go.podman.io", []string{"image"}, "one package knows registries"},
	{"tags.cncf.io/container-device-interface", []string{"server/cdi"}, "one package knows CDI"},
	{"github.com/containernetworking", []string{"network", "cmd/crisp-bridge"}, "one package knows CNI"},
	{module + "/config", []string{"cmd", "config"}, "packages take plain options"},
	{module + "/server", []string{"server", "cmd/crispd", "cmd/crisp", "test"}, "the server is the top of crispd"},
	{module + "/agent", []string{"agent", "apiserver", "cmd/crisp", "test"}, "the agent is a client"},
	{module + "/apiserver", []string{"apiserver", "cmd/crisp", "test"}, "the agent runs pods without it"},
	{module + "/apiserver/kubectl", []string{"apiserver/kubectl", "apiserver/apiserver.go"}, "it could be deleted: nothing of crisp's own needs it"},
	{module + "/oci", []string{"oci", "server", "cmd/crispd", "cmd/crisp-executor", "test/ocitest", "test/gatetest"}, "siblings do not import each other"},
	{module + "/network", []string{"network", "server", "cmd/crispd", "cmd/crisp-bridge"}, "siblings do not import each other"},
	{module + "/oci/executor", []string{"oci/executor", "cmd/crisp-executor", "test/gatetest"}, "crispd calls the executor, it does not link it"},
	{module + "/image", []string{"image", "server", "cmd/crispd", "test/imagetest"}, "siblings do not import each other"},
	{module + "/image/blob", []string{"image"}, "only image is concerned with how an image is read"},
	{module + "/image/layer", []string{"image"}, "only image is concerned with how layers are kept"},
	{module + "/streaming", []string{"streaming", "server", "cmd/crispd"}, "siblings do not import each other"},
	{module + "/checkpoint", []string{"checkpoint", "server", "cmd/crispd", "test/ocitest", "test/imagetest"}, "siblings do not import each other"},
	{"k8s.io/kubernetes", nil, "it is no library"},
}

// exempt lists what one package may import all the same; each entry needs a reason.
var exempt = map[string]string{
	// The command line uploads archives to crispd; the package holds only the
	// client of that one service.
	"cmd/crisp → " + module + "/server/loaderapi/loaderclient": "the client half of image load",
}

func TestImportsOnlyWhereTheyBelong(t *testing.T) {
	for _, f := range tree(t) {
		for _, path := range imports(f.ast) {
			for _, rule := range only {
				if !below(path, rule.imported) || belowAny(f.path, rule.in) {
					continue
				}
				if f.test && below(f.dir, "oci") && strings.HasPrefix(rule.imported, module+"/checkpoint") {
					continue // oci's tests use the same records as crispd
				}
				if f.test && below(f.dir, "image") && strings.HasPrefix(rule.imported, module+"/checkpoint") {
					continue
				}
				t.Errorf("%s imports %s: %s", f.path, path, rule.why)
			}
		}
	}
	for _, f := range tree(t) {
		if below(f.dir, "cmd/crisp") && f.dir == "cmd/crisp" {
			for _, path := range imports(f.ast) {
				if below(path, module+"/server") && exempt[f.dir+" → "+path] == "" {
					t.Errorf("%s imports %s: the agent and its command line are clients", f.path, path)
				}
			}
		}
	}
}

// What ships links no instrument of tests: test/filetrace could be made to trace another process by
// an environment variable, and test/golden has its flag.
func TestToolsOfTestsAreInTestsOnly(t *testing.T) {
	for _, f := range tree(t) {
		if f.test || below(f.dir, "test") {
			continue
		}
		for _, path := range imports(f.ast) {
			if below(path, module+"/test") {
				t.Errorf("%s imports %s, which is for tests", f.path, path)
			}
		}
	}
}

// TestExecutorIsSmall checks the packages linked into crisp-executor, which is executed for each
// container: each of them costs time at each start.
func TestExecutorIsSmall(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "-tags", "seccomp", module+"/cmd/crisp-executor")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	never := []string{"google.golang.org/grpc", "google.golang.org/protobuf", "github.com/containerd/containerd", "github.com/containerd/ttrpc", "k8s.io", "go.podman.io", "github.com/containernetworking",
		module + "/server", module + "/image", module + "/network", module + "/config", "net/http"}
	packages := strings.Fields(string(out))
	for _, path := range packages {
		if belowAny(path, never) {
			t.Errorf("crisp-executor links %s", path)
		}
	}
	if len(packages) < 50 {
		t.Errorf("only %d packages: is this the executor?", len(packages))
	}
}

func TestEveryPackageHasItsComment(t *testing.T) {
	has := map[string]bool{}
	for _, f := range tree(t) {
		if !f.test {
			has[f.dir] = has[f.dir] || f.ast.Doc != nil
		}
	}
	for dir, ok := range has {
		if !ok {
			t.Errorf("%s has no package comment", dir)
		}
	}
}

// Log messages are constants, and varying parts are attributes: otherwise a message cannot be
// searched for.
func TestLogMessagesAreConstant(t *testing.T) {
	levels := []string{"Debug", "Info", "Warn", "Error", "DebugContext", "InfoContext", "WarnContext", "ErrorContext"}
	for _, f := range tree(t) {
		if f.test || !slices.Contains(imports(f.ast), "log/slog") {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !slices.Contains(levels, sel.Sel.Name) {
				return true
			}
			for _, arg := range call.Args[:min(2, len(call.Args))] {
				if c, ok := arg.(*ast.CallExpr); ok {
					if s, ok := c.Fun.(*ast.SelectorExpr); ok && strings.HasPrefix(s.Sel.Name, "Sprint") {
						t.Errorf("%s: the log message is made by %s", fset.Position(call.Pos()), s.Sel.Name)
					}
				}
			}
			return true
		})
	}
}

// Every direct dependency has its reason, and nothing is replaced: see TestGoInstall.
func TestDependenciesHaveReasons(t *testing.T) {
	out, err := exec.Command("go", "mod", "edit", "-json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
		Replace []struct{ Old, New struct{ Path string } }
	}
	if err := json.NewDecoder(bytes.NewReader(out)).Decode(&mod); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	for _, r := range mod.Replace {
		t.Errorf("go.mod replaces %s by %s", r.Old.Path, r.New.Path)
	}
	doc, err := os.ReadFile(filepath.Join("..", "..", "docs", "dependencies.md"))
	if err != nil {
		t.Fatal(err)
	}
	direct := map[string]bool{}
	for _, r := range mod.Require {
		if !r.Indirect {
			direct[r.Path] = true
			if !bytes.Contains(doc, []byte("`"+r.Path+"`")) {
				t.Errorf("docs/dependencies.md has no line for %s", r.Path)
			}
		}
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)`").FindAllSubmatch(doc, -1) {
		if !direct[string(m[1])] {
			t.Errorf("docs/dependencies.md names %s, which go.mod does not require directly", m[1])
		}
	}
}

// SECURITY.md names the version of the linked libcontainer: readers of a vulnerability in runc look
// there.
func TestSecurityPolicyNamesLibcontainer(t *testing.T) {
	const runc = "github.com/opencontainers/runc"
	version, err := exec.Command("go", "list", "-m", "-f", "{{.Version}}", runc).Output()
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile(filepath.Join("..", "..", "SECURITY.md"))
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`\brunc (v[0-9]\S*[0-9])`).FindAllSubmatch(doc, -1)
	if len(named) == 0 {
		t.Error("SECURITY.md names no version of runc")
	}
	for _, m := range named {
		if want := strings.TrimSpace(string(version)); string(m[1]) != want {
			t.Errorf("SECURITY.md names runc %s, go.mod has %s", m[1], want)
		}
	}
}
