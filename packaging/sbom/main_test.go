package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// For a search for CVEs the bill must have each module of a program with its linked version.
func TestBillHasWhatWasLinked(t *testing.T) {
	bridge := filepath.Join(t.TempDir(), "crisp-bridge")
	if out, err := exec.Command("go", "build", "-o", bridge, "../../cmd/crisp-bridge").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	script := filepath.Join(t.TempDir(), "crisp-podinit")
	if err := os.WriteFile(script, []byte("no program of Go"), 0o755); err != nil {
		t.Fatal(err)
	}
	var first, second bytes.Buffer
	for _, w := range []*bytes.Buffer{&first, &second} {
		if err := run(w, "1.2", nil, "../../apiserver/page/static/xterm/package.json", []string{bridge, script}); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(first.String(), second.String()); diff != "" {
		t.Errorf("two bills of one program differ:\n%s", diff)
	}
	var bom struct { // by the names of CycloneDX's schema
		BOMFormat, SpecVersion string
		Components             []struct{ Type, Name, Version, PURL string }
		Dependencies           []struct{ DependsOn []string }
	}
	if err := json.Unmarshal(first.Bytes(), &bom); err != nil {
		t.Fatal(err)
	}
	if bom.BOMFormat != "CycloneDX" || bom.SpecVersion != "1.6" {
		t.Errorf("the bill is of format %s %s", bom.BOMFormat, bom.SpecVersion)
	}
	found := map[string]bool{}
	for _, c := range bom.Components {
		name, _, _ := strings.Cut(c.PURL, "@")
		found[name] = c.Version != "" && c.Type == "library"
		found[c.Name] = true
	}
	for _, want := range []string{"pkg:golang/std", "pkg:golang/github.com/vishvananda/netlink", "pkg:npm/%40xterm/xterm", "crisp-podinit"} {
		if !found[want] {
			t.Errorf("the bill has no %s with a version", want)
		}
	}
	uses := 0
	for _, d := range bom.Dependencies {
		uses += len(d.DependsOn)
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
	err := run(&bytes.Buffer{}, "1.2", nil, "", []string{"/nonexistent/crispd"})
	if err == nil || !strings.Contains(err.Error(), "/nonexistent/crispd") {
		t.Errorf("error is %v, want one that names the program", err)
	}
}
