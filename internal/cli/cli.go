// Package cli makes what goes with a command line, of the table that the program
// itself has of its commands: completion for shells, and a man page. So neither
// forgets a flag.
package cli

import (
	"flag"
	"fmt"
	"slices"
	"strings"
)

// A Program is a command line.
type Program struct {
	Name     string
	About    string // one line, without a full stop
	Flags    []Flag // of all commands
	Commands []Command
}

// A Command is one verb of a program; "" is what it does without one.
type Command struct {
	Name  string
	Usage string // what follows the name
	About string // one line
	Flags []Flag
	Words []string // what may stand as its argument, if that is known
	Bare  bool     // it takes none of the program's flags
}

// A Flag is one flag of a command.
type Flag struct {
	Name  string
	Value string // what kind of value follows; "" if none does
	About string
}

// FlagsOf lists the flags of a set.
func FlagsOf(set *flag.FlagSet) []Flag {
	var list []Flag
	set.VisitAll(func(f *flag.Flag) {
		value, about := flag.UnquoteUsage(f)
		list = append(list, Flag{f.Name, value, about})
	})
	return list
}

// dashed is a flag as people write it.
func (f Flag) dashed() string {
	if len(f.Name) == 1 {
		return "-" + f.Name
	}
	return "--" + f.Name
}

// all are the flags that may follow a command.
func (p Program) all(c Command) []Flag {
	list := slices.Clone(c.Flags)
	if !c.Bare {
		list = append(list, p.Flags...)
	}
	slices.SortStableFunc(list, func(a, b Flag) int { return strings.Compare(a.Name, b.Name) })
	return slices.CompactFunc(list, func(a, b Flag) bool { return a.Name == b.Name })
}

// Shells are those that Completion knows.
var Shells = []string{"bash", "zsh", "fish"}

// Completion returns a script that completes p's commands, flags and known words in
// a shell.
func Completion(p Program, shell string) (string, error) {
	switch shell {
	case "bash":
		return bash(p), nil
	case "zsh":
		return zsh(p), nil
	case "fish":
		return fish(p), nil
	}
	return "", fmt.Errorf("there is completion for %s, not for %q", strings.Join(Shells, ", "), shell)
}

func bash(p Program) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# bash completion for %s: made by \"%[1]s completion bash\"\n_%[1]s() {\n", p.Name)
	b.WriteString("\tlocal cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command= word i\n")
	b.WriteString("\tfor ((i = 1; i < COMP_CWORD; i++)); do\n\t\tcase ${COMP_WORDS[i]} in\n\t\t-*) ;;\n")
	fmt.Fprintf(&b, "\t\t%s) command=${COMP_WORDS[i]}; break ;;\n\t\tesac\n\tdone\n", strings.Join(names(p), " | "))
	b.WriteString("\tcase $prev in\n")
	if files := valued(p, true); len(files) > 0 {
		fmt.Fprintf(&b, "\t%s) COMPREPLY=($(compgen -f -- \"$cur\")); return ;;\n", strings.Join(files, " | "))
	}
	if others := valued(p, false); len(others) > 0 {
		fmt.Fprintf(&b, "\t%s) return ;;\n", strings.Join(others, " | "))
	}
	b.WriteString("\tesac\n\tcase $command in\n")
	for _, c := range p.Commands {
		words := slices.Clone(c.Words)
		for _, f := range p.all(c) {
			words = append(words, f.dashed())
		}
		if c.Name == "" {
			words = append(words, names(p)...)
			fmt.Fprintf(&b, "\t\"\") word=%s ;;\n", shellQuote(strings.Join(words, " ")))
			continue
		}
		fmt.Fprintf(&b, "\t%s) word=%s ;;\n", c.Name, shellQuote(strings.Join(words, " ")))
	}
	fmt.Fprintf(&b, "\tesac\n\tCOMPREPLY=($(compgen -W \"$word\" -- \"$cur\"))\n}\ncomplete -o default -F _%s %[1]s\n", p.Name)
	return b.String()
}

func zsh(p Program) string {
	var b strings.Builder
	fmt.Fprintf(&b, "#compdef %s\n# made by \"%[1]s completion zsh\"\n_%[1]s() {\n\tlocal -a commands flags words\n\tlocal command= i\n\tcommands=(\n", p.Name)
	for _, c := range p.Commands {
		if c.Name != "" {
			fmt.Fprintf(&b, "\t\t%s\n", shellQuote(c.Name+":"+c.About))
		}
	}
	b.WriteString("\t)\n\tfor ((i = 2; i < CURRENT; i++)); do\n\t\tcase $words[i] in\n\t\t-*) ;;\n")
	fmt.Fprintf(&b, "\t\t%s) command=$words[i]; break ;;\n\t\tesac\n\tdone\n\tcase $command in\n", strings.Join(names(p), "|"))
	for _, c := range p.Commands {
		name := c.Name
		if name == "" {
			name = `""`
		}
		fmt.Fprintf(&b, "\t%s) flags=(", name)
		for _, f := range p.all(c) {
			fmt.Fprintf(&b, " %s", shellQuote(f.dashed()+":"+f.About))
		}
		b.WriteString(" )")
		if len(c.Words) > 0 {
			fmt.Fprintf(&b, "; arguments=(%s)", strings.Join(c.Words, " "))
		}
		b.WriteString(" ;;\n")
	}
	b.WriteString("\tesac\n\tif [[ $PREFIX = -* ]]; then\n\t\t_describe flag flags\n\telif [[ -z $command ]]; then\n\t\t_describe command commands\n" +
		"\telif (( $#arguments )); then\n\t\tcompadd -a arguments\n\telse\n\t\t_files\n\tfi\n}\n")
	s := strings.Replace(b.String(), "local -a commands flags words\n", "local -a commands flags arguments\n", 1)
	return s + fmt.Sprintf("_%s \"$@\"\n", p.Name)
}

func fish(p Program) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# fish completion for %s: made by \"%[1]s completion fish\"\n", p.Name)
	all := strings.Join(names(p), " ")
	for _, c := range p.Commands {
		on := "__fish_seen_subcommand_from " + c.Name
		if c.Name == "" {
			on = "not __fish_seen_subcommand_from " + all
		} else {
			fmt.Fprintf(&b, "complete -c %s -f -n %s -a %s -d %s\n", p.Name, shellQuote("not __fish_seen_subcommand_from "+all), c.Name, shellQuote(c.About))
		}
		if len(c.Words) > 0 {
			fmt.Fprintf(&b, "complete -c %s -f -n %s -a %s\n", p.Name, shellQuote(on), shellQuote(strings.Join(c.Words, " ")))
		}
		for _, f := range p.all(c) {
			kind := "-l"
			if len(f.Name) == 1 {
				kind = "-s"
			}
			value := ""
			switch {
			case f.isFile():
				value = " -r -F"
			case f.Value != "":
				value = " -x"
			}
			fmt.Fprintf(&b, "complete -c %s -n %s %s %s%s -d %s\n", p.Name, shellQuote(on), kind, f.Name, value, shellQuote(f.About))
		}
	}
	return b.String()
}

func names(p Program) []string {
	var list []string
	for _, c := range p.Commands {
		if c.Name != "" {
			list = append(list, c.Name)
		}
	}
	return list
}

// isFile tells whether the shell's own completion of paths serves.
func (f Flag) isFile() bool {
	return slices.Contains([]string{"file", "directory", "path", "socket"}, f.Value)
}

// valued are the flags, of any command, that a value follows.
func valued(p Program, files bool) []string {
	var list []string
	for _, c := range p.Commands {
		for _, f := range p.all(c) {
			if f.Value != "" && f.isFile() == files && !slices.Contains(list, f.dashed()) {
				list = append(list, f.dashed())
			}
		}
	}
	return list
}

func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
