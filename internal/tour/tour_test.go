package tour

import (
	"fmt"
	"go/types"
	"slices"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/internal/golden"
)

const head = `# A tour of the code

Made by ` + "`go test ./internal/tour -update`" + ` of the code and of ` + "`internal/tour/testdata/outlines.txt`" + `: do not edit it here.
What the words mean is in [style.md](style.md#words), what is promised in the package comments.

`

// docs/tour.md agrees with the code.
func TestTour(t *testing.T) {
	g := tree(t)
	var b strings.Builder
	b.WriteString(head)
	b.WriteString("## The ways worth knowing\n\n")
	var titles []string
	for _, o := range outlines(t) {
		titles = append(titles, o.title)
		fmt.Fprintf(&b, "### %s\n\n", o.title)
		for i, s := range o.steps {
			f := g.byName[s.name]
			if f == nil {
				t.Fatalf("%s: there is no %s", s.at, s.name)
			}
			by := ""
			if s.via == kernel {
				by = " (woken by the kernel)"
			} else if s.via != "" {
				by = " (called by " + strings.Split(s.via, "/")[2] + ")"
			}
			fmt.Fprintf(&b, "%d. %s%s %s\n", i+1, f.link(), by, s.phrase)
		}
		b.WriteString("\n")
	}
	b.WriteString("## All other RPCs\n\nThe handler, and what it calls first in other packages.\n\n| RPC | handler | calls |\n|---|---|---|\n")
	for _, rpc := range g.rpcs() {
		if !slices.Contains(titles, rpc) {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", rpc, link(g.handler(rpc).file), g.first(g.handler(rpc)))
		}
	}
	b.WriteString("\n## State machines\n\n")
	b.WriteString(g.machines())
	b.WriteString("## Drawings\n\nFrom the comments.\n\n" + g.drawings())
	b.WriteString("## Where things are written\n\nWhat they are is in [hacking.md](hacking.md#where-things-are-on-disk).\n\n")
	b.WriteString(table(g.files()))
	golden.Check(t, root+"/docs/tour.md", b.String())
}

// rpcs returns the methods of CRI's two services, by name.
func (g *graph) rpcs() (list []string) {
	for _, service := range []string{"RuntimeServiceServer", "ImageServiceServer"} {
		iface := g.cri.Scope().Lookup(service).Type().Underlying().(*types.Interface)
		for i := range iface.NumMethods() {
			if m := iface.Method(i); m.Exported() {
				list = append(list, m.Name())
			}
		}
	}
	slices.Sort(list)
	return list
}

// firsts is the number of functions of other packages that are listed.
const firsts = 4

// first returns the functions of other packages that the handler f calls, or that
// functions of its own package which it calls do. Those of internal packages are left out.
func (g *graph) first(f *function) string {
	var list []string
	var walk func(f *function, depth int)
	walk = func(f *function, depth int) {
		for _, to := range g.next(f) {
			switch {
			case len(list) == firsts || strings.HasPrefix(to.pkg.dir, "internal/"):
			case to.pkg != f.pkg && to.matters() && !slices.Contains(list, to.link()):
				list = append(list, to.link())
			case to.pkg == f.pkg && depth > 0:
				walk(to, depth-1)
			}
		}
	}
	walk(f, 2)
	return strings.Join(list, ", ")
}

// link returns a link to a file for the documents.
func link(file string) string {
	return fmt.Sprintf("[%s](../%s)", file, file)
}
