package main

import (
	"fmt"
	"time"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
)

// stopCommand makes the agent stop pods, without deleting them: their volumes, logs and exit codes
// are kept, and they can be started again.
func stopCommand(c *cli) *cobra.Command {
	var s scope
	var grace int64
	var every bool
	var timeout time.Duration
	cmd := &cobra.Command{Use: "stop POD... | -l SELECTOR | --all [--grace-period N]", Short: "stop pods and keep them; they stay stopped, even after a reboot, until start", ValidArgsFunction: c.completePods}
	fs := cmd.Flags()
	s.oneFlags(fs)
	fs.BoolVar(&every, "all", false, "all pods of the namespace")
	graceFlag(fs, &grace)
	fs.Int64VarP(&grace, "time", "t", -1, "the same `seconds`, docker's name")
	fs.DurationVar(&timeout, "timeout", 15*time.Minute, "how long to wait until they have stopped")
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
		pods, err := c.toActOn(rest, s, every, "stop")
		if err != nil {
			return err
		}
		for _, f := range pods {
			if err := c.actOn(f.Pod.Namespace, f.Pod.Name, "stop", graceQuery(grace), nil); err != nil {
				return err
			}
		}
		for _, f := range pods {
			if _, err := c.untilPod(f.Pod.Namespace, f.Pod.Name, timeout, "pod "+f.Pod.Name+" has not stopped", func(now *v1.Pod) (bool, error) {
				return now.Status.Reason == podsync.StoppedReason || podsync.Terminal(&now.Status), nil
			}); err != nil {
				return err
			}
			fmt.Fprintf(c.stdout, "pod/%s stopped\n", f.Pod.Name)
		}
		return nil
	}
	return cmd
}

// toActOn returns the pods that the arguments name or a selector matches, or all pods of the
// namespace.
func (c *cli) toActOn(args []string, s scope, every bool, act string) ([]criruntime.Found, error) {
	if len(args) == 0 && s.selector == "" && !every {
		return nil, usageError("%s takes the names of pods", act)
	}
	return c.selected(args, s)
}
