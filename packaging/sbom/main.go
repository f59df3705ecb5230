// Sbom prints the software bill of materials (SBOM) of built programs, as CycloneDX 1.6 in JSON.
//
//	sbom -version VERSION [-static PACKAGE,…] PROGRAM …
//
// It reads the modules of a Go program from the program itself (debug/buildinfo), so the bill has
// what was linked, not what go.mod would allow. Programs do not record their C libraries: those in
// static programs are named by their Debian packages, and dpkg has the versions.
//
// The bill is reproducible: it has no time and no random number.
package main

import (
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

const module = "github.com/crisp-cri/crisp"

func main() {
	version := flag.String("version", "", "`version` of the package that contains the programs")
	static := flag.String("static", "", "comma-separated Debian `packages` whose libraries are linked statically")
	flag.Parse()
	packages := strings.FieldsFunc(*static, func(r rune) bool { return r == ',' })
	if err := run(os.Stdout, *version, packages, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(w io.Writer, version string, packages, programs []string) error {
	if len(programs) == 0 {
		return errors.New("name a program")
	}
	b := bill{components: map[string]cdx.Component{}, uses: map[string][]string{}}
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
	return cdx.NewBOMEncoder(w, cdx.BOMFileFormatJSON).SetPretty(true).SetEscapeHTML(false).EncodeVersion(b.bom(version), cdx.SpecVersion1_6)
}

// A bill is the result so far: components by their reference in the bill.
type bill struct {
	components map[string]cdx.Component
	uses       map[string][]string // the components of each program
}

// addProgram adds the program at path and its modules. For a program that is not written in Go it
// adds only the name.
func (b *bill) addProgram(path, version string) error {
	ref := "crisp/" + filepath.Base(path)
	b.components[ref] = cdx.Component{BOMRef: ref, Type: cdx.ComponentTypeApplication, Name: filepath.Base(path), Version: version}
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
	b.components[purl] = cdx.Component{BOMRef: purl, Type: cdx.ComponentTypeLibrary, Name: name, Version: version, PackageURL: purl}
	b.uses[program] = append(b.uses[program], purl)
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

func (b *bill) bom(version string) *cdx.BOM {
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Component: &cdx.Component{
		BOMRef: "crisp", Type: cdx.ComponentTypeApplication, Name: "crisp", Version: version, PackageURL: "pkg:golang/" + module + "@" + version}}
	var refs []string
	for ref := range b.components {
		refs = append(refs, ref)
	}
	slices.Sort(refs)
	var components []cdx.Component
	var dependencies []cdx.Dependency
	for _, ref := range refs {
		components = append(components, b.components[ref])
		if uses, ok := b.uses[ref]; ok {
			slices.Sort(uses)
			dependencies = append(dependencies, cdx.Dependency{Ref: ref, Dependencies: &uses})
		}
	}
	bom.Components, bom.Dependencies = &components, &dependencies
	return bom
}
