package main

import (
	"fmt"
	"net/http"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/status"
	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
)

// drainCommand makes the agent stop all pods before maintenance.
func drainCommand(c *cli) *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{Use: "drain", Args: takesNone(": it is about this node"), Short: "stop all pods, those of the lowest priority first, and keep new ones from starting, until uncordon"}
	cmd.Flags().DurationVar(&timeout, "timeout", 15*time.Minute, "how long to wait until they have stopped")
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
		if _, err := c.send(http.MethodPost, "/crisp/v1/drain", nil, nil, nil); err != nil {
			return err
		}
		reported := map[string]bool{}
		return c.until(timeout, "not all pods have stopped", func() (bool, error) {
			var pods v1.PodList
			if err := c.fetch("/pods", nil, &pods); err != nil {
				return false, err
			}
			left := 0
			for i := range pods.Items {
				pod := &pods.Items[i]
				name := pod.Namespace + "/" + pod.Name
				switch {
				case pod.Status.Reason != podsync.StoppedReason && !podsync.Terminal(&pod.Status):
					left++
				case !reported[name]:
					reported[name] = true
					fmt.Fprintf(c.stdout, "pod %s: %s\n", name, status.Word(pod))
				}
			}
			return left == 0, nil
		})
	}
	return cmd
}

// uncordonCommand ends a drain.
func uncordonCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "uncordon", Args: takesNone(": it is about this node"), Short: "end a drain: all pods run again, except those that were stopped individually",
		RunE: func(*cobra.Command, []string) error {
			_, err := c.send(http.MethodPost, "/crisp/v1/uncordon", nil, nil, nil)
			return err
		},
	}
}
