package main

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
)

// psCommand lists containers.
func psCommand(c *cli) *cobra.Command {
	var s scope
	var exited, quiet bool
	cmd := &cobra.Command{Use: "ps [POD...] [-A] [-a] [-q] [-l SELECTOR]", Short: "list containers", ValidArgsFunction: c.completePods}
	fs := cmd.Flags()
	s.flags(fs)
	fs.BoolVarP(&exited, "all", "a", false, "also containers that are not running")
	fs.BoolVarP(&quiet, "quiet", "q", false, "print only IDs")
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
		pods, err := c.selected(rest, s)
		if err != nil {
			return err
		}
		t := newTable(c.stdout)
		if !quiet {
			row(t, s.all, "NAMESPACE", strings.Fields("POD CONTAINER STATE RESTARTS IMAGE ID"))
		}
		for _, f := range pods {
			for _, st := range statusesOf(f.Pod) {
				id := shortID(podsync.RuntimeID(st.ContainerID))
				switch {
				case st.State.Running == nil && !exited:
				case !quiet:
					row(t, s.all, f.Pod.Namespace, []string{f.Pod.Name, st.Name, stateShort(st.State), fmt.Sprint(st.RestartCount), st.Image, cmp.Or(id, "<none>")})
				case id != "":
					row(t, false, "", []string{id})
				}
			}
		}
		return t.Flush()
	}
	return cmd
}

func stateShort(s v1.ContainerState) string {
	switch {
	case s.Running != nil:
		return "Running"
	case s.Terminated != nil:
		return cmp.Or(s.Terminated.Reason, "Exited")
	case s.Waiting != nil:
		return s.Waiting.Reason
	}
	return "Unknown"
}
