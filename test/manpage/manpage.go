// Package manpage makes man pages from the tables of commands that help is made from, for tests that
// compare docs/man with them.
package manpage

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/crisp-cri/crisp/internal/cli"
)

// A Section is a handwritten section of a man page: paragraphs with an empty line
// between them.
type Section struct{ Title, Text string }

// Man returns the man page of a program, in the man(7) format.
func Man(root *cobra.Command, chapter int, more ...Section) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".\\\" Made from the program's own tables; see test/manpage.\n")
	fmt.Fprintf(&b, ".TH %s %d \"\" crisp\n.SH NAME\n%s \\- %s\n.SH SYNOPSIS\n", strings.ToUpper(root.Name()), chapter, root.Name(), roff(root.Short))
	for _, c := range cli.Commands(root) {
		fmt.Fprintf(&b, ".B %s\n%s\n.br\n", root.Name(), roff(c.Use))
	}
	b.WriteString(".SH COMMANDS\n")
	for _, c := range cli.Commands(root) {
		fmt.Fprintf(&b, ".SS %s\n%s.\n", roff(c.Name()), roff(upper(c.Short)))
		if c.Long != "" {
			fmt.Fprintf(&b, ".PP\n%s", Paragraphs(c.Long))
		}
		if len(c.ValidArgs) > 0 {
			fmt.Fprintf(&b, "Arguments: %s.\n", roff(strings.Join(c.ValidArgs, ", ")))
		}
		writeFlags(&b, cli.Flags(c.NonInheritedFlags()))
	}
	if all := cli.Flags(root.PersistentFlags()); len(all) > 0 {
		b.WriteString(".SH OPTIONS OF ALL COMMANDS\n")
		writeFlags(&b, all)
	}
	for _, s := range more {
		fmt.Fprintf(&b, ".SH %s\n%s", s.Title, Paragraphs(s.Text))
	}
	return b.String()
}

func writeFlags(b *strings.Builder, flags []*pflag.Flag) {
	for _, f := range flags {
		value, about := pflag.UnquoteUsage(f)
		fmt.Fprintf(b, ".TP\n\\fB%s\\fR", roff(cli.Dashed(f)))
		if value != "" {
			fmt.Fprintf(b, " \\fI%s\\fR", roff(value))
		}
		fmt.Fprintf(b, "\n%s\n", roff(about))
	}
}

// Paragraphs converts plain text to man(7): an empty line separates paragraphs, and lines that
// begin with a space are shown verbatim.
func Paragraphs(text string) string {
	var b strings.Builder
	for i, par := range strings.Split(strings.Trim(text, "\n"), "\n\n") {
		if i > 0 {
			b.WriteString(".PP\n")
		}
		if strings.HasPrefix(par, " ") {
			fmt.Fprintf(&b, ".nf\n%s\n.fi\n", roff(par))
			continue
		}
		fmt.Fprintf(&b, "%s\n", roff(par))
	}
	return b.String()
}

// roff escapes what troff(1) would interpret.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}

func upper(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}
