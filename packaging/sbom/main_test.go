package main

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// For a search for CVEs the bill must have each module of a program with its linked version. The
// program here is the test itself.
func TestBillHasWhatWasLinked(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(t.TempDir(), "crisp-podinit")
	if err := os.WriteFile(script, []byte("no program of Go"), 0o755); err != nil {
		t.Fatal(err)
	}
	var first, second bytes.Buffer
	for _, w := range []*bytes.Buffer{&first, &second} {
		if err := run(w, "1.2", nil, []string{self, script}); err != nil {
			t.Fatal(err)
		}
	}
	if first.String() != second.String() {
		t.Error("two bills of one program differ")
	}
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(&first, cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, c := range *bom.Components {
		name, _, _ := strings.Cut(c.PackageURL, "@")
		found[name] = c.Version != ""
		found[c.Name] = true
	}
	for _, want := range []string{"pkg:golang/std", "pkg:golang/github.com/CycloneDX/cyclonedx-go", "crisp-podinit"} {
		if !found[want] {
			t.Errorf("the bill has no %s with a version", want)
		}
	}
	uses := 0
	for _, d := range *bom.Dependencies {
		if d.Dependencies != nil {
			uses += len(*d.Dependencies)
		}
	}
	if uses < 2 {
		t.Errorf("the programs use %d components, want 2 at least", uses)
	}
}

// A replaced module is listed as its replacement, unless that is crisp's own.
func TestBillOfReplacedModules(t *testing.T) {
	info := &debug.BuildInfo{Main: debug.Module{Path: module}, Deps: []*debug.Module{
		{Path: "example.com/plain", Version: "v1.0.0"},
		{Path: "example.com/ours", Version: "v1.0.0", Replace: &debug.Module{Path: "./ours", Version: "(devel)"}},
		{Path: "example.com/ours/upstream", Version: "v1.0.0", Replace: &debug.Module{Path: "example.com/ours", Version: "v1.0.0"}},
	}}
	var got []string
	for _, m := range modules(info) {
		got = append(got, m.Path+"@"+m.Version)
	}
	if want := "example.com/plain@v1.0.0 example.com/ours@v1.0.0"; strings.Join(got, " ") != want {
		t.Errorf("the bill has %q, want %s", got, want)
	}
}

func TestBillOfAMissingProgram(t *testing.T) {
	err := run(&bytes.Buffer{}, "1.2", nil, []string{"/nonexistent/crispd"})
	if err == nil || !strings.Contains(err.Error(), "/nonexistent/crispd") {
		t.Errorf("error is %v, want one that names the program", err)
	}
}
