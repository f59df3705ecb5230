// Package cli has what crisp and crispd share, whose commands are cobra's: help in one format,
// shell completion, and what a man page has of both (test/manpage). All three are generated from the
// table of commands itself, so none of them can lack a flag.
package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func init() { cobra.EnableCommandSorting = false } // people read them in their order

// Shells are the shells with completion.
var Shells = []string{"bash", "zsh", "fish"}

// Complete adds to root, which has all its commands and its output, the command "completion" and
// help, which ends with notes. A usage error is returned as the error of usage; root prints none
// itself.
func Complete(root *cobra.Command, usage func(format string, args ...any) error, notes string) {
	root.SilenceErrors, root.SilenceUsage = true, true
	root.DisableFlagsInUseLine, root.SuggestionsMinimumDistance = true, 1
	for _, cmd := range root.Commands() {
		cmd.DisableFlagsInUseLine = true
	}
	last := ""
	if groups := root.Groups(); len(groups) > 0 {
		last = groups[len(groups)-1].ID
	}
	root.AddCommand(&cobra.Command{
		Use:       "completion SHELL",
		GroupID:   last,
		Short:     "print a script that completes this command line in " + strings.Join(Shells, ", "),
		ValidArgs: Shells,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage("completion needs one shell: %s", strings.Join(Shells, ", "))
			}
			switch out := root.OutOrStdout(); args[0] {
			case "bash":
				return root.GenBashCompletionV2(out, true)
			case "zsh":
				return root.GenZshCompletion(out)
			case "fish":
				return root.GenFishCompletion(out, true)
			}
			return usage("there is completion for %s, not for %q", strings.Join(Shells, ", "), args[0])
		},
	})
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage("%v", err) })
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { help(root, cmd, notes) })
	root.SetHelpCommand(&cobra.Command{
		Use:   "help [COMMAND]",
		Short: "show help for a command",
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return usage("there is no command %q: see %s help", strings.Join(args, " "), root.Name())
			}
			return cmd.Help()
		},
	})
	serve := root.RunE
	root.Args = cobra.ArbitraryArgs
	root.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) > 0:
			return usage("there is no command %q: see %s", args[0], strings.Join(append(root.SuggestionsFor(args[0]), root.Name()+" help"), " or "))
		case serve != nil:
			return serve(cmd, args)
		}
		return root.Help()
	}
}

// DoubleDashes replaces -name in args by --name, up to "--", if that is a flag of a command of
// root: units and scripts may still use the old form.
func DoubleDashes(root *cobra.Command, args []string) []string {
	known := make(map[string]bool)
	for _, cmd := range append(root.Commands(), root) {
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { known[f.Name] = len(f.Name) > 1 })
	}
	args = slices.Clone(args)
	for i, arg := range args {
		if arg == "--" {
			break
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(arg, "-"), "=")
		if strings.HasPrefix(arg, "-") && known[name] {
			args[i] = "-" + arg
		}
	}
	return args
}

func help(root, cmd *cobra.Command, notes string) {
	out := cmd.OutOrStdout()
	fmt.Fprintf(out, "%s: %s\n\nusage: %s\n", cmd.CommandPath(), cmd.Short, cmd.UseLine())
	if cmd.Long != "" {
		fmt.Fprintf(out, "\n%s\n", cmd.Long)
	}
	if cmd == root {
		group := ""
		for i, c := range Commands(root) {
			if i == 0 || c.GroupID != group {
				fmt.Fprintln(out)
			}
			if c.GroupID != group {
				group = c.GroupID
				fmt.Fprintf(out, "%s:\n", group)
			}
			fmt.Fprintf(out, "  %-12s %s\n", c.Name(), c.Short)
		}
	}
	if own := Flags(cmd.NonInheritedFlags()); len(own) > 0 {
		fmt.Fprintln(out)
		printFlags(out, own)
	}
	if inherited := Flags(cmd.InheritedFlags()); len(inherited) > 0 {
		fmt.Fprintln(out, "\nas every command:")
		printFlags(out, inherited)
	}
	if cmd == root && notes != "" {
		fmt.Fprintf(out, "\n%s\n", notes)
	}
}

func printFlags(out io.Writer, flags []*pflag.Flag) {
	for _, f := range flags {
		value, about := pflag.UnquoteUsage(f)
		fmt.Fprintf(out, "  %-34s %s", strings.TrimSpace(Dashed(f)+" "+value), about)
		if !slices.Contains([]string{"", "false", "0", "0s", "[]", "-1"}, f.DefValue) {
			fmt.Fprintf(out, " (default %s)", f.DefValue)
		}
		fmt.Fprintln(out)
	}
}

// Dashed returns a flag as a user types it.
func Dashed(f *pflag.Flag) string {
	switch {
	case f.Shorthand == f.Name:
		return "-" + f.Name
	case f.Shorthand != "":
		return "-" + f.Shorthand + ", --" + f.Name
	}
	return "--" + f.Name
}

// Commands returns the commands of root that help shows.
func Commands(root *cobra.Command) []*cobra.Command {
	return slices.DeleteFunc(slices.Clone(root.Commands()), func(c *cobra.Command) bool { return !c.IsAvailableCommand() })
}

// Flags returns the flags of a set in order, except hidden ones and help.
func Flags(set *pflag.FlagSet) []*pflag.Flag {
	var list []*pflag.Flag
	set.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && f.Name != "help" {
			list = append(list, f)
		}
	})
	return list
}
