package main

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	v1 "k8s.io/api/core/v1"
)

// runContainers lists containers, as "crisp ps".
func runContainers(c *cli, args []string) error {
	var namespace string
	var all, exited bool
	fs := c.flags("ps")
	namespaceFlag(fs, &namespace)
	fs.BoolVar(&all, "A", false, "of all namespaces")
	fs.BoolVar(&all, "all-namespaces", false, "the same")
	fs.BoolVar(&exited, "a", false, "those too that do not run")
	rest, err := c.parse(fs, args)
	if err != nil {
		return err
	}
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
			row(t, all, f.Pod.Namespace, []string{f.Pod.Name, s.Name, stateShort(s.State), fmt.Sprint(s.RestartCount), s.Image, or(short(runtimeID(s.ContainerID)), "<none>")})
		}
	}
	return t.Flush()
}

func stateShort(s v1.ContainerState) string {
	switch {
	case s.Running != nil:
		return "Running"
	case s.Terminated != nil:
		return or(s.Terminated.Reason, "Exited")
	case s.Waiting != nil:
		return s.Waiting.Reason
	}
	return "Unknown"
}
