package main

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/apiserver/startup"
	"github.com/crisp-cri/crisp/internal/timeline"
	"github.com/spf13/cobra"
)

// mostStages is the maximum number of stages listed for a pod.
const mostStages = 3

// topStartupCommand lists pods by the time until they were ready.
func topStartupCommand(c *cli) *cobra.Command {
	var namespace string
	var all bool
	cmd := &cobra.Command{Use: "startup [-A]", Args: takesNone(""), Short: "show which pods took longest to become ready, and why", DisableFlagsInUseLine: true}
	namespaceFlag(cmd.Flags(), &namespace)
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "pods of all namespaces")
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
		var list struct{ Items []startup.Report }
		if err := c.fetch("/crisp/v1/startup", nil, &list); err != nil {
			return err
		}
		now := time.Now()
		reports := slices.DeleteFunc(list.Items, func(r startup.Report) bool { return !all && r.Pod.Namespace != namespace })
		slices.SortStableFunc(reports, func(a, b startup.Report) int {
			return cmp.Compare(b.Until(now).Sub(b.Seen), a.Until(now).Sub(a.Seen))
		})
		t := newTable(c.stdout)
		row(t, all, "NAMESPACE", []string{"POD", "START-UP", "READY", "MOSTLY"})
		for _, r := range reports {
			ready := "yes"
			if r.Ready.IsZero() {
				ready = "no"
			}
			row(t, all, r.Pod.Namespace, []string{r.Pod.Name, timeline.Brief(r.Until(now).Sub(r.Seen)), ready, mostly(r, now)})
		}
		return t.Flush()
	}
	return cmd
}

// mostly lists the longest stages of a pod's start.
func mostly(r startup.Report, now time.Time) string {
	var words []string
	for _, s := range timeline.Sum(r.Stages, r.Seen, r.Until(now)) {
		if len(words) < mostStages && s.Took > 0 {
			words = append(words, s.Name+" "+timeline.Brief(s.Took))
		}
	}
	return strings.Join(words, ", ")
}
