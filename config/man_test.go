package config_test

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/config"
	"github.com/crisp-cri/crisp/test/golden"
	"github.com/crisp-cri/crisp/test/manpage"
)

// The man page consists of the comments of the keys, and of what a reload does to
// each: -update writes it.
func TestManPage(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "config.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	types := map[string]*ast.TypeSpec{}
	docs := map[string]string{}
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.TYPE {
			continue
		}
		for _, s := range g.Specs {
			spec := s.(*ast.TypeSpec)
			types[spec.Name.Name], docs[spec.Name.Name] = spec, g.Doc.Text()
		}
	}
	var b strings.Builder
	b.WriteString(".\\\" Made from config/config.go; see config/man_test.go.\n.TH CRISPD.TOML 5 \"\" crisp\n" +
		".SH NAME\ncrispd.toml \\- the configuration of crispd\n.SH DESCRIPTION\n")
	b.WriteString(manpage.Paragraphs(description))
	b.WriteString(".SH KEYS\n")
	writeKeys(t, &b, types, docs, "Config", "")
	b.WriteString(".SH SEE ALSO\n" + manpage.Paragraphs("crispd(8), registries.conf(5), policy.json(5), containers-auth.json(5), oci-hooks(5)"))

	golden.Check(t, "../docs/man/crispd.toml.5", b.String())
}

const description = `crispd reads /etc/crisp/config.toml, or the file that --config names, and then config.d/*.toml beside it, in lexical order. None is needed. The format is TOML. A later value replaces an earlier one whole, lists too; a flag of the command line replaces all.

What is not a key, has the wrong type or makes no sense is an error that names the file and the line. crispd config prints what is in force and where each value comes from.

After SIGHUP (systemctl reload crisp) crispd reads the files again. Which keys it takes then is said below; a change of the others waits for a restart, which no container notices.`

// writeKeys writes the keys of a struct of config.go, followed by those of its
// tables.
func writeKeys(t *testing.T, b *strings.Builder, types map[string]*ast.TypeSpec, docs map[string]string, name, table string) {
	t.Helper()
	var tables []func()
	for _, f := range types[name].Type.(*ast.StructType).Fields.List {
		if f.Tag == nil {
			continue
		}
		tag, _ := strconv.Unquote(f.Tag.Value)
		key := reflect.StructTag(tag).Get("toml")
		if of := tableOf(types, f.Type); of != "" {
			tables = append(tables, func() {
				key := table + key
				head := "[" + key + "]"
				if of == "Handler" {
					head, key = "[handlers.NAME]", "handlers.NAME"
				}
				fmt.Fprintf(b, ".SS %s\n%s", head, manpage.Paragraphs(strings.Replace(docs[of], of+" ", head+" ", 1)))
				writeKeys(t, b, types, docs, of, key+".")
			})
			continue
		}
		text := f.Doc.Text()
		if text == "" {
			t.Errorf("%s has no comment", table+key)
		}
		text = strings.Replace(text, f.Names[0].Name+" ", key+" ", 1)
		fmt.Fprintf(b, ".TP\n\\fB%s\\fR\n%s", key, strings.ReplaceAll(manpage.Paragraphs(strings.TrimSpace(text)), ".PP\n", ".IP\n"))
		fmt.Fprintf(b, ".IP\nReload: %s.\n", cmp.Or(config.Takes(table+key), "needs a restart"))
	}
	for _, write := range tables {
		write()
	}
}

// tableOf returns the name of the struct of a field that is a table, "" for a plain
// value.
func tableOf(types map[string]*ast.TypeSpec, e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		if of := types[e.Name]; of != nil {
			if _, ok := of.Type.(*ast.StructType); ok {
				return e.Name
			}
		}
	case *ast.MapType:
		return tableOf(types, e.Value)
	case *ast.StarExpr:
		return tableOf(types, e.X)
	}
	return ""
}
