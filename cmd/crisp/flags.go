package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
)

// flags returns the flags that every command has. Usage is printed by us.
func (c *cli) flags(name string) *flag.FlagSet {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&c.endpoint, "runtime-endpoint", c.endpoint, "`socket` of the CRI runtime")
	fs.StringVar(&c.endpoint, "container-runtime-endpoint", c.endpoint, "the same, by the kubelet's name")
	fs.StringVar(&c.agentRoot, "agent-root", c.agentRoot, "the agent's own `directory`, in which its socket is")
	return fs
}

// parse parses a command's arguments. Flags may stand before and behind the
// others, and letters may be joined: "exec -it web". What follows "--" is no
// flag.
func (c *cli) parse(fs *flag.FlagSet, args []string) (positional []string, err error) {
	for len(args) > 0 {
		if args[0] == "--" {
			return append(positional, args[1:]...), nil
		}
		if !strings.HasPrefix(args[0], "-") || args[0] == "-" {
			positional, args = append(positional, args[0]), args[1:]
			continue
		}
		// One flag at a time: flag.FlagSet stops for good at the first
		// argument that is none.
		args = append(separate(fs, args[0]), args[1:]...)
		err := fs.Parse(args)
		if errors.Is(err, flag.ErrHelp) {
			c.printHelp(fs)
			return nil, errHelp
		}
		if err != nil {
			return nil, usageError("%v", err)
		}
		rest := fs.Args()
		if n := len(args) - len(rest); n > 0 && args[n-1] == "--" {
			return append(positional, rest...), nil
		}
		args = rest
	}
	return positional, nil
}

// separate cuts "-it" into "-i" and "-t" if both are switches.
func separate(fs *flag.FlagSet, arg string) []string {
	letters := strings.TrimPrefix(arg, "-")
	if strings.HasPrefix(letters, "-") || len(letters) < 2 || fs.Lookup(letters) != nil {
		return []string{arg}
	}
	var out []string
	for _, l := range letters {
		f := fs.Lookup(string(l))
		if f == nil {
			return []string{arg}
		}
		if b, ok := f.Value.(interface{ IsBoolFlag() bool }); !ok || !b.IsBoolFlag() {
			return []string{arg}
		}
		out = append(out, "-"+string(l))
	}
	return out
}

func (c *cli) printHelp(fs *flag.FlagSet) {
	if c.see != nil {
		c.see(fs)
		return
	}
	fmt.Fprintf(c.stdout, "crisp %s: %s\n\nusage: crisp %s %s\n\n", c.cmd.name, c.cmd.about, c.cmd.name, c.cmd.usage)
	fs.VisitAll(func(f *flag.Flag) {
		value, about := flag.UnquoteUsage(f)
		dashes := "--"
		if len(f.Name) == 1 {
			dashes = "-"
		}
		fmt.Fprintf(c.stdout, "  %-34s %s", strings.TrimSpace(dashes+f.Name+" "+value), about)
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "0" && f.DefValue != "0s" {
			fmt.Fprintf(c.stdout, " (default %s)", f.DefValue)
		}
		fmt.Fprintln(c.stdout)
	})
}
