package main

import (
	"fmt"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/utils/ptr"
)

// scaleCommand sets the number of a Deployment's pods.
func scaleCommand(c *cli) *cobra.Command {
	var s scope
	var replicas, current int
	var every, wait bool
	var timeout time.Duration
	cmd := &cobra.Command{Use: "scale deploy/NAME... | deploy -l SELECTOR|--all --replicas N", Short: "set how many pods a Deployment has", ValidArgsFunction: c.completeObjects}
	fs := cmd.Flags()
	s.oneFlags(fs)
	fs.IntVar(&replicas, "replicas", -1, "number of `pods` wanted")
	fs.IntVar(&current, "current-replicas", -1, "only if this number of `pods` is wanted now")
	fs.BoolVar(&every, "all", false, "all Deployments of the namespace")
	fs.BoolVar(&wait, "wait", false, "wait until they are available")
	fs.DurationVar(&timeout, "timeout", time.Minute, "how long to wait")
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
		const usage = "scale takes Deployments, and --replicas N"
		if replicas < 0 {
			return usageError(usage)
		}
		what, err := c.choose(rest, s, every, usage)
		if err != nil {
			return err
		}
		for _, t := range what {
			if t.kind.Name != "Deployment" {
				return usageError("%s: only a Deployment has replicas", t)
			}
			if err := c.scale(t, replicas, current); err != nil {
				return err
			}
			fmt.Fprintln(c.stdout, t, "scaled")
		}
		if !wait {
			return nil
		}
		return c.waitReady(what, timeout)
	}
	return cmd
}

func (c *cli) scale(t chosen, replicas, current int) error {
	var d appsv1.Deployment
	if err := c.fetch(t.path(), nil, &d); err != nil {
		return err
	}
	if now := int(ptr.Deref(d.Spec.Replicas, 1)); current >= 0 && now != current {
		return fault.WrongState.Errorf("%s is to have %d pods, not %d", t, now, current)
	}
	_, err := c.change(t, func(o map[string]any) error {
		within(o, "spec")["replicas"] = replicas
		return nil
	})
	return err
}
