package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
)

// psCommand lists containers, as "crisp ps".
func psCommand(c *cli) *cobra.Command {
	var namespace string
	var all, exited bool
	cmd := &cobra.Command{Use: "ps [-A] [-a]", Short: "list containers"}
	fs := cmd.Flags()
	namespaceFlag(fs, &namespace)
	fs.BoolVarP(&all, "all-namespaces", "A", false, "of all namespaces")
	fs.BoolVarP(&exited, "all", "a", false, "those too that do not run")
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
		if len(rest) > 0 {
			return usageError("ps takes no argument %q", rest[0])
		}
		runtime, _, err := c.connect()
		if err != nil {
			return err
		}
		pods, err := c.pods(runtime)
		if err != nil {
			return err
		}
		t := tabwriter.NewWriter(c.stdout, 0, 0, 3, ' ', 0)
		row(t, all, "NAMESPACE", strings.Fields("POD CONTAINER STATE RESTARTS IMAGE ID"))
		for _, f := range pods {
			if !all && f.Pod.Namespace != namespace {
				continue
			}
			st := f.Pod.Status
			for _, s := range slices.Concat(st.InitContainerStatuses, st.ContainerStatuses, st.EphemeralContainerStatuses) {
				if s.State.Running == nil && !exited {
					continue
				}
				row(t, all, f.Pod.Namespace, []string{f.Pod.Name, s.Name, stateShort(s.State), fmt.Sprint(s.RestartCount), s.Image, cmp.Or(short(runtimeID(s.ContainerID)), "<none>")})
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
