package tour

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// An outline is the path of one call.
type outline struct {
	title string
	steps []step
}

// A step is one function on the path.
type step struct {
	at     string // testdata/outlines.txt:LINE
	name   string // "oci.Container.Stop"
	via    string // of a function that a library calls: the library's import path; or kernel
	phrase string
}

// kernel stands for the event that wakes a waiting function.
const kernel = "kernel"

// maxSteps is the maximum number of functions of an outline.
const maxSteps = 10

// outlines reads testdata/outlines.txt.
func outlines(t *testing.T) (all []outline) {
	t.Helper()
	const file = "testdata/outlines.txt"
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(data)) {
		n++
		line = strings.TrimSpace(line)
		at := fmt.Sprintf("%s:%d", file, n)
		switch title, isTitle := strings.CutPrefix(line, "= "); {
		case line == "" || strings.HasPrefix(line, "#"):
		case isTitle:
			all = append(all, outline{title: title})
		default:
			name, phrase, ok := strings.Cut(line, " ")
			if !ok || len(all) == 0 {
				t.Fatalf("%s: want a function and a phrase, below a title", at)
			}
			s := step{at: at, name: name, phrase: strings.TrimSpace(phrase)}
			if rest, ok := strings.CutPrefix(s.phrase, "<"); ok {
				s.via, s.phrase, _ = strings.Cut(rest, "> ")
			}
			o := &all[len(all)-1]
			o.steps = append(o.steps, s)
		}
	}
	return all
}

// An outline is correct: each function exists, is not empty, and is reached from one above it.
func TestOutlines(t *testing.T) {
	g := tree(t)
	for _, o := range outlines(t) {
		if len(o.steps) < 2 || len(o.steps) > maxSteps {
			t.Errorf("%s has %d steps: 2 to %d can be taken in", o.title, len(o.steps), maxSteps)
		}
		var above []*function
		for i, s := range o.steps {
			f := g.byName[s.name]
			switch {
			case f == nil:
				t.Errorf("%s: there is no %s; these have its name: %s", s.at, s.name, names(g.namesakes(s.name)))
				continue
			case f.forwards:
				t.Errorf("%s: %s only forwards: name the function that it calls", s.at, s.name)
			case i == 0 && g.handler(o.title) != nil && f != g.handler(o.title):
				t.Errorf("%s: %s begins in %s", s.at, o.title, g.handler(o.title).name)
			case s.via == kernel:
			case s.via != "" && !g.calledBy(f, s.via):
				t.Errorf("%s: %s implements no interface of %s", s.at, s.name, s.via)
			case i > 0 && s.via == "" && !slices.ContainsFunc(above, func(a *function) bool { return g.leads(a, f) }):
				t.Errorf("%s: none of those above leads to %s; these do: %s; on the way there from above: %s",
					s.at, s.name, names(g.callers(f)), names(g.path(above, f)))
			}
			above = append(above, f)
		}
	}
}

// handler returns the function that handles an RPC, nil for no RPC.
func (g *graph) handler(rpc string) *function {
	if !slices.Contains(g.rpcs(), rpc) {
		return nil
	}
	if f := g.byName["server.imageService."+rpc]; f != nil {
		return f
	}
	return g.byName["server.Server."+rpc]
}

// namesakes returns the functions whose name ends with a name.
func (g *graph) namesakes(name string) (list []*function) {
	last := name[strings.LastIndex(name, ".")+1:]
	for _, f := range g.funcs {
		if f.obj.Name() == last {
			list = append(list, f)
		}
	}
	return list
}

// callers returns the functions that lead to f.
func (g *graph) callers(f *function) (list []*function) {
	for _, caller := range g.funcs {
		if slices.Contains(g.next(caller), f) {
			list = append(list, caller)
		}
	}
	return list
}

// path returns the shortest path from one of some functions to another, nil without a path.
func (g *graph) path(from []*function, to *function) (way []*function) {
	before := map[*function]*function{}
	for queue := slices.Clone(from); len(queue) > 0; queue = queue[1:] {
		for _, next := range g.next(queue[0]) {
			if before[next] != nil || slices.Contains(from, next) {
				continue
			}
			before[next] = queue[0]
			if next == to {
				for f := to; f != nil; f = before[f] {
					way = append([]*function{f}, way...)
				}
				return way
			}
			queue = append(queue, next)
		}
	}
	return nil
}

func names(list []*function) string {
	if len(list) == 0 {
		return "none"
	}
	var names []string
	for _, f := range list {
		names = append(names, f.name)
	}
	return strings.Join(names, ", ")
}
