package main

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/crisp-cri/crisp/agent/desired"
	"github.com/crisp-cri/crisp/agent/status"
	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
)

// sourcesCommand lists each manifest with its objects, their states, and its errors.
func sourcesCommand(c *cli) *cobra.Command {
	var output string
	cmd := &cobra.Command{Use: "sources", Args: takesNone(""), Short: "show what each manifest defines, and what is wrong with it"}
	fs := cmd.Flags()
	outputFlag(fs, &output, "json", "yaml")
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
		var sources []desired.SourceState
		if err := c.fetch("/crisp/v1/sources", nil, &sources); err != nil {
			return err
		}
		if output != "" {
			return c.printValue(sources, output)
		}
		var pods v1.PodList
		if err := c.fetch("/pods", nil, &pods); err != nil {
			return err
		}
		states := map[string]string{}
		for i := range pods.Items {
			p := &pods.Items[i]
			states["pod "+p.Namespace+"/"+p.Name] = status.Word(p)
		}
		t := c.columns("SOURCE", "MANIFEST", "OBJECT", "STATE")
		for _, s := range sources {
			if !s.Reported {
				fmt.Fprintf(t, "%s\t\t\tnot read yet\n", s.Name)
			}
			for _, f := range s.Files {
				if f.Error != "" || len(f.Objects) == 0 {
					fmt.Fprintf(t, "%s\t%s\t\t%s\n", s.Name, f.Path, cmp.Or(strings.ReplaceAll(f.Error, "\n", "; "), "empty"))
				}
				for _, o := range f.Objects {
					fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", s.Name, f.Path, o, cmp.Or(states[o], "known"))
				}
				for _, w := range f.Warnings {
					fmt.Fprintf(t, "%s\t%s\t\twarning: %s\n", s.Name, f.Path, w)
				}
			}
		}
		return t.Flush()
	}
	return cmd
}

func sourceWord(s desired.SourceState, bad int) string {
	switch {
	case !s.Reported:
		return "has not been read yet"
	case bad > 0:
		return fmt.Sprintf("%d manifests, %d of them broken: see crisp sources", len(s.Files), bad)
	}
	return fmt.Sprintf("%d manifests", len(s.Files))
}
