package cli

import (
	"fmt"
	"strings"
)

// A Section is a section of a man page that is written by hand: paragraphs with an
// empty line between them.
type Section struct{ Title, Text string }

// Man returns the man page of p, in the man(7) format.
func Man(p Program, chapter int, more ...Section) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".\\\" Made from the program's own tables; see internal/cli.\n")
	fmt.Fprintf(&b, ".TH %s %d \"\" crisp\n.SH NAME\n%s \\- %s\n.SH SYNOPSIS\n", strings.ToUpper(p.Name), chapter, p.Name, roff(p.About))
	for _, c := range p.Commands {
		line := strings.TrimSpace(c.Name + " " + c.Usage)
		fmt.Fprintf(&b, ".B %s\n%s\n.br\n", p.Name, roff(line))
	}
	b.WriteString(".SH COMMANDS\n")
	for _, c := range p.Commands {
		name := c.Name
		if name == "" {
			name = "(none)"
		}
		fmt.Fprintf(&b, ".SS %s\n%s.\n", roff(name), roff(upper(c.About)))
		if len(c.Words) > 0 {
			fmt.Fprintf(&b, "Arguments: %s.\n", roff(strings.Join(c.Words, ", ")))
		}
		writeFlags(&b, c.Flags)
	}
	if len(p.Flags) > 0 {
		b.WriteString(".SH OPTIONS OF ALL COMMANDS\n")
		writeFlags(&b, p.Flags)
	}
	for _, s := range more {
		fmt.Fprintf(&b, ".SH %s\n%s", s.Title, Paragraphs(s.Text))
	}
	return b.String()
}

func writeFlags(b *strings.Builder, flags []Flag) {
	for _, f := range flags {
		fmt.Fprintf(b, ".TP\n\\fB%s\\fR", roff(f.dashed()))
		if f.Value != "" {
			fmt.Fprintf(b, " \\fI%s\\fR", roff(f.Value))
		}
		fmt.Fprintf(b, "\n%s\n", roff(f.About))
	}
}

// Paragraphs makes man(7) of plain text: an empty line parts paragraphs, and lines
// that begin with a blank are shown as they are.
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

// roff escapes what troff(1) would take for its own.
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
