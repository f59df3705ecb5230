package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/status"
	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
)

// startCommand makes the agent start stopped pods again.
func startCommand(c *cli) *cobra.Command {
	var s scope
	var every bool
	var timeout time.Duration
	cmd := &cobra.Command{Use: "start POD... | -l SELECTOR | --all", Short: "start stopped pods again", ValidArgsFunction: c.completePods}
	fs := cmd.Flags()
	s.oneFlags(fs)
	fs.BoolVar(&every, "all", false, "all stopped pods of the namespace")
	fs.DurationVar(&timeout, "timeout", time.Minute, "how long to wait until they run")
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
		pods, err := c.toActOn(rest, s, every, "start")
		if err != nil {
			return err
		}
		for _, f := range pods {
			if every && f.Pod.Status.Reason != podsync.StoppedReason {
				continue
			}
			if err := c.actOn(f.Pod.Namespace, f.Pod.Name, "start", nil, nil); err != nil {
				return err
			}
			if err := c.untilRuns(f.Pod, timeout); err != nil {
				return err
			}
			fmt.Fprintf(c.stdout, "pod/%s started\n", f.Pod.Name)
		}
		return nil
	}
	return cmd
}

// untilRuns waits until a container of a pod runs, or the pod has ended.
func (c *cli) untilRuns(pod *v1.Pod, timeout time.Duration) error {
	return c.untilSays(timeout, "pod "+pod.Name+" does not run", func() (bool, string, error) {
		var now v1.Pod
		if err := c.fetch(pathOf(podKind, pod.Namespace, pod.Name), nil, &now); err != nil {
			return false, "", err
		}
		runs := slices.ContainsFunc(now.Status.ContainerStatuses, func(s v1.ContainerStatus) bool { return s.State.Running != nil })
		return runs || podsync.Terminal(&now.Status), status.Word(&now), nil
	})
}
