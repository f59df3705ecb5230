package archtest

import (
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A retiredWord is one that stood for several things, or for something that has a usual name.
type retiredWord struct {
	instead string
	in      []string // directories where it has its one meaning, see the glossary in docs/style.md
	names   []string // identifiers in which it may be
}

var retiredWords = map[string]retiredWord{
	"book":      {instead: "recorder, or what is recorded"},
	"care":      {instead: "housekeeping"},
	"crix":      {instead: "criruntime"},
	"foster":    {instead: "adopt"},
	"hurry":     {instead: "deadline, or what is due"},
	"owes":      {instead: "what is pending"},
	"speaks":    {instead: "the protocol, or the messages", names: []string{"speaksHTTP2"}},
	"spend":     {instead: "what it costs"},
	"strangers": {instead: "unknown, or whose it is"},
	"unserved":  {instead: "what was not done"},
	"weigh":     {instead: "shares, or compare"},
	"wires":     {instead: "stdio"},

	// A lock is held, and nothing else; onHold is the kubelet's name.
	"held":  {instead: "retained (a layer), kept open (a descriptor), frozen, blocked, stuck", names: []string{"ErrHeld"}},
	"hold":  {instead: "retain (a layer), keep (a descriptor), freeze, block", names: []string{"onHold"}},
	"holds": {instead: "retains, keeps, has, matches"},

	// A stage is a step of a timeline.
	"stageable": {instead: "canPrepare"},
	"staged":    {instead: "prepared (a mount), unpacked (a layer)"},
	"staging":   {instead: "prepare", in: []string{"image"}}, // the directory of unfinished work

	// Only the layers of a root file system are leased, and files, by fcntl(2).
	"lease":  {instead: "handle, address", in: []string{"image/rootfs"}},
	"leased": {instead: "in use", in: []string{"image/rootfs"}},
	"leases": {instead: "handles, addresses", in: []string{"image", "test/testenv", "test"}},

	"tell":  {instead: "report, publish, notify"},
	"tells": {instead: "reports, publishes, notifies"},
	"told":  {instead: "reported, published, notified"},
}

// Names of tests are sentences, in which any word may be.
var testName = regexp.MustCompile(`^(Test|Benchmark|Fuzz|Example)`)

// Words that were retired do not come back: each means one thing, by the usage of the field.
func TestRetiredWords(t *testing.T) {
	for _, f := range tree(t) {
		check := func(id *ast.Ident) {
			if id == nil {
				return
			}
			for _, word := range retiredIn(f.dir, id.Name) {
				t.Errorf("%s: %s has the word %q: say %s", fset.Position(id.Pos()), id.Name, word, retiredWords[word].instead)
			}
		}
		check(f.ast.Name)
		ast.Inspect(f.ast, func(n ast.Node) bool {
			for _, id := range declared(n) {
				check(id)
			}
			return true
		})
	}
}

// declared are the names that a node itself declares.
func declared(n ast.Node) (names []*ast.Ident) {
	local := func(list ...ast.Expr) {
		for _, x := range list {
			if id, ok := x.(*ast.Ident); ok {
				names = append(names, id)
			}
		}
	}
	switch n := n.(type) {
	case *ast.FuncDecl:
		return []*ast.Ident{n.Name}
	case *ast.TypeSpec:
		return []*ast.Ident{n.Name}
	case *ast.ImportSpec:
		return []*ast.Ident{n.Name}
	case *ast.Field:
		return n.Names
	case *ast.ValueSpec:
		return n.Names
	case *ast.AssignStmt:
		if n.Tok == token.DEFINE {
			local(n.Lhs...)
		}
	case *ast.RangeStmt:
		if n.Tok == token.DEFINE {
			local(n.Key, n.Value)
		}
	}
	return names
}

// retiredIn returns the words of a name that it may not have in the directory dir.
func retiredIn(dir, name string) (found []string) {
	if testName.MatchString(name) {
		return nil
	}
	for _, word := range wordsOf(name) {
		r, retired := retiredWords[word]
		if retired && !belowAny(dir, r.in) && !slices.Contains(r.names, name) {
			found = append(found, word)
		}
	}
	return found
}

// wordsOf returns the words of a name in lower case, an acronym as one.
func wordsOf(name string) (words []string) {
	from := 0
	for i := 1; i <= len(name); i++ {
		begins := i < len(name) && isUpper(name[i]) && (!isUpper(name[i-1]) || i+1 < len(name) && !isUpper(name[i+1]))
		if i == len(name) || begins {
			words = append(words, strings.ToLower(name[from:i]))
			from = i
		}
	}
	return words
}

func isUpper(c byte) bool { return 'A' <= c && c <= 'Z' }

func TestRetiredWordsAreFound(t *testing.T) {
	for _, test := range []struct {
		dir, name string
		want      []string
	}{
		{"oci/executor", "awaitHeld", []string{"held"}},
		{"oci/executor", "holdAll", []string{"hold"}},
		{"oci/executor", "HTTPTold", []string{"told"}},
		{"oci/executor", "heldFDs", []string{"held"}},
		{"oci/executor", "lease", []string{"lease"}},
		{"image/rootfs", "leaseRecord", nil},
		{"internal/flock", "ErrHeld", nil},
		{"agent/housekeeping", "thresholds", nil}, // hold is no word of it
		{"agent/worker", "TestFailuresHoldBack", nil},
	} {
		if got := retiredIn(test.dir, test.name); !slices.Equal(got, test.want) {
			t.Errorf("%s in %s: %q, want %q", test.name, test.dir, got, test.want)
		}
	}
}
