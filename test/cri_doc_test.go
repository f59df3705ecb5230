package test

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// docs/cri.md has an entry for each RPC of CRI and each field of the requests, and the tests
// that it names exist.
func TestCRIDocumentIsComplete(t *testing.T) {
	doc, err := os.ReadFile("../docs/cri.md")
	if err != nil {
		t.Fatal(err)
	}
	has := func(name string) bool {
		return regexp.MustCompile(`\b` + regexp.QuoteMeta(name) + `\b`).Match(doc)
	}
	file := cri.File_staging_src_k8s_io_cri_api_pkg_apis_runtime_v1_api_proto
	rpcs := 0
	for i := range file.Services().Len() {
		methods := file.Services().Get(i).Methods()
		for j := range methods.Len() {
			rpcs++
			if name := string(methods.Get(j).Name()); !has(name) {
				t.Errorf("no row for RPC %s", name)
			}
		}
	}
	if rpcs != 37+6 {
		t.Errorf("CRI has %d RPCs, the document is of 43", rpcs)
	}
	for _, message := range []string{
		"PodSandboxConfig", "LinuxPodSandboxConfig", "LinuxSandboxSecurityContext", "NamespaceOption",
		"ContainerConfig", "Mount", "Device", "LinuxContainerResources", "LinuxContainerSecurityContext", "Capability", "ImageSpec",
	} {
		m := file.Messages().ByName(protoreflect.Name(message))
		if m == nil {
			t.Errorf("CRI has no message %s", message)
			continue
		}
		for i := range m.Fields().Len() {
			name := string(m.Fields().Get(i).Name())
			short := strings.TrimSuffix(name, "_capabilities")
			if !has(name) && !has(short) && name != "windows" {
				t.Errorf("no row for %s.%s", message, name)
			}
		}
	}
	checkTestsExist(t, doc)
}

// testFiles returns the texts of all Go files of tests, by path.
func testFiles(t *testing.T) map[string][]byte {
	t.Helper()
	texts := map[string][]byte{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		texts[path], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return texts
}

func checkTestsExist(t *testing.T, doc []byte) {
	t.Helper()
	var tests bytes.Buffer
	for _, text := range testFiles(t) {
		tests.Write(text)
	}
	_, rows, _ := bytes.Cut(doc, []byte("\n## "))
	rows = bytes.Join(bytes.Fields(rows), []byte(" ")) // lines are wrapped anywhere
	named := regexp.MustCompile("`(Test\\w+)`").FindAllSubmatch(rows, -1)
	if len(named) < 50 {
		t.Errorf("only %d tests are named: is this the document?", len(named))
	}
	for _, m := range named {
		if !bytes.Contains(tests.Bytes(), []byte("func "+string(m[1])+"(")) {
			t.Errorf("there is no test %s", m[1])
		}
	}
	for _, m := range regexp.MustCompile(`\bscript/(\w+)`).FindAllSubmatch(rows, -1) {
		if _, err := os.Stat(filepath.Join("script", string(m[1])+".txtar")); err != nil {
			t.Errorf("script: %v", err)
		}
	}
	for _, m := range regexp.MustCompile(`\bgolden ([a-z0-9-]+(?:, [a-z0-9-]+)*)`).FindAllSubmatch(rows, -1) {
		for _, name := range strings.Split(string(m[1]), ", ") {
			if found, _ := filepath.Glob("../server/spec/testdata/" + name + "*.txtar"); len(found) == 0 {
				t.Errorf("there is no golden case %s", name)
			}
		}
	}
}
