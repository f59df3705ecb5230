// Sbom prints the software bill of materials (SBOM) of built programs, as CycloneDX 1.6 in JSON.
//
//	sbom -version VERSION [-static PACKAGE,…] [-npm FILE] PROGRAM …
//
// It reads the modules of a Go program from the program itself (debug/buildinfo), so the bill has
// what was linked, not what go.mod would allow. Programs do not record their C libraries: those in
// static programs are named by their Debian packages, and dpkg has the versions. FILE is the
// package.json of an npm package that is embedded in crisp.
//
// The bill is reproducible: it has no time and no random number.
package main

import (
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
)

const module = "github.com/crisp-cri/crisp"

// The part of CycloneDX 1.6 that a bill needs, in the order of its schema.
type (
	document struct {
		Schema       string       `json:"$schema"`
		Format       string       `json:"bomFormat"`
		SpecVersion  string       `json:"specVersion"`
		Version      int          `json:"version"`
		Metadata     metadata     `json:"metadata"`
		Components   []component  `json:"components"`
		Dependencies []dependency `json:"dependencies"`
	}
	metadata struct {
		Component component `json:"component"`
	}
	component struct {
		BOMRef     string `json:"bom-ref"`
		Type       string `json:"type"`
		Name       string `json:"name"`
		Version    string `json:"version,omitempty"`
		PackageURL string `json:"purl,omitempty"`
	}
	dependency struct {
		Ref       string   `json:"ref"`
		DependsOn []string `json:"dependsOn,omitempty"`
	}
)

func main() {
	version := flag.String("version", "", "`version` of the package that contains the programs")
	static := flag.String("static", "", "comma-separated Debian `packages` whose libraries are linked statically")
	npm := flag.String("npm", "", "package.json of the npm package that is embedded in crisp")
	flag.Parse()
	packages := strings.FieldsFunc(*static, func(r rune) bool { return r == ',' })
	if err := run(os.Stdout, *version, packages, *npm, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(w io.Writer, version string, packages []string, npm string, programs []string) error {
	if len(programs) == 0 {
		return errors.New("name a program")
	}
	b := bill{components: map[string]component{}, uses: map[string][]string{}}
	for _, path := range programs {
		if err := b.addProgram(path, version); err != nil {
			return err
		}
	}
	for _, name := range packages {
		if err := b.addLibrary(name); err != nil {
			return err
		}
	}
	if npm != "" {
		if err := b.addScript(npm); err != nil {
			return err
		}
	}
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	out.SetIndent("", "  ")
	return out.Encode(b.document(version))
}

// A bill is the result so far: components by their reference in the bill.
type bill struct {
	components map[string]component
	uses       map[string][]string // the components of each program
}

// addProgram adds the program at path and its modules. For a program that is not written in Go it
// adds only the name.
func (b *bill) addProgram(path, version string) error {
	ref := "crisp/" + filepath.Base(path)
	b.components[ref] = component{BOMRef: ref, Type: "application", Name: filepath.Base(path), Version: version}
	b.uses[ref] = []string{}
	info, err := buildinfo.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err != nil {
		return nil // crisp-podinit is written in C and has no libraries
	}
	b.add(ref, "pkg:golang/std@"+strings.TrimPrefix(info.GoVersion, "go"), "std", strings.TrimPrefix(info.GoVersion, "go"))
	for _, m := range modules(info) {
		b.add(ref, "pkg:golang/"+m.Path+"@"+m.Version, m.Path, m.Version)
	}
	return nil
}

// modules returns the linked modules, except crisp itself and replacements within its tree
// (./PATH), which have no version.
func modules(info *debug.BuildInfo) []*debug.Module {
	var list []*debug.Module
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		if strings.HasPrefix(m.Path, "./") {
			continue
		}
		list = append(list, m)
	}
	if info.Main.Path != module { // such as a CNI plugin
		list = append(list, &info.Main)
	}
	return list
}

func (b *bill) add(program, purl, name, version string) {
	b.components[purl] = component{BOMRef: purl, Type: "library", Name: name, Version: version, PackageURL: purl}
	b.uses[program] = append(b.uses[program], purl)
}

// addScript adds the npm package that a package.json describes.
func (b *bill) addScript(path string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var p struct{ Name, Version string }
	if err := json.Unmarshal(raw, &p); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	b.add("crisp/crisp", "pkg:npm/"+strings.ReplaceAll(p.Name, "@", "%40")+"@"+p.Version, p.Name, p.Version)
	return nil
}

// addLibrary adds the part of the Debian package name that is in the static executor.
func (b *bill) addLibrary(name string) error {
	out, err := exec.Command("dpkg-query", "-W", "-f", "${Version}", name).Output()
	if err != nil {
		return fmt.Errorf("ask dpkg for the version of %s: %w", name, err)
	}
	version := string(out)
	purl := "pkg:deb/debian/" + name + "@" + strings.NewReplacer("+", "%2B", ":", "%3A").Replace(version)
	b.add("crisp/crisp-executor", purl, name, version)
	return nil
}

func (b *bill) document(version string) document {
	d := document{Schema: "http://cyclonedx.org/schema/bom-1.6.schema.json", Format: "CycloneDX", SpecVersion: "1.6", Version: 1}
	d.Metadata.Component = component{BOMRef: "crisp", Type: "application", Name: "crisp", Version: version, PackageURL: "pkg:golang/" + module + "@" + version}
	for _, ref := range slices.Sorted(maps.Keys(b.components)) {
		d.Components = append(d.Components, b.components[ref])
		if uses, ok := b.uses[ref]; ok {
			slices.Sort(uses)
			d.Dependencies = append(d.Dependencies, dependency{ref, uses})
		}
	}
	return d
}
