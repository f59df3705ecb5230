package main

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
)

// restartCommand makes the agent stop containers, with their hooks and grace period; they start
// again as their pod's restart policy says. It returns when they have stopped.
func restartCommand(c *cli) *cobra.Command {
	var s scope
	var container string
	var grace int64
	var timeout time.Duration
	cmd := &cobra.Command{Use: "restart POD|TYPE/NAME... | -l SELECTOR [-c CONTAINER]", Short: "restart the containers of pods", ValidArgsFunction: c.completePods}
	fs := cmd.Flags()
	s.oneFlags(fs)
	fs.StringVarP(&container, "container", "c", "", "`name` of the container; without it, all")
	graceFlag(fs, &grace)
	fs.DurationVar(&timeout, "timeout", 15*time.Minute, "how long to wait until they have stopped")
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
		pods, err := c.toActOn(rest, s, false, "restart")
		if err != nil {
			return err
		}
		for _, f := range pods {
			if err := c.restart(f.Pod.Namespace, f.Pod.Name, container, grace, timeout); err != nil {
				return err
			}
		}
		return nil
	}
	return cmd
}

// graceFlag adds the flag for the grace period of containers.
func graceFlag(fs *pflag.FlagSet, grace *int64) {
	fs.Int64Var(grace, "grace-period", -1, "grace period of containers in `seconds`; negative uses each pod's own")
}

func (c *cli) restart(namespace, name, container string, grace int64, timeout time.Duration) error {
	var before v1.Pod
	if err := c.fetch(pathOf(podKind, namespace, name), nil, &before); err != nil {
		return err
	}
	query := graceQuery(grace)
	if container != "" {
		query.Set("container", container)
	}
	var asked struct{ Items []string }
	if err := c.actOn(namespace, name, "restart", query, &asked); err != nil {
		return err
	}
	for _, box := range asked.Items {
		was := runningID(&before, box)
		if _, err := c.untilPod(namespace, name, timeout, name+"/"+box+" has not stopped", func(now *v1.Pod) (bool, error) {
			id := runningID(now, box)
			return id == "" || id != was, nil
		}); err != nil {
			return err
		}
		fmt.Fprintf(c.stdout, "%s/%s stopped\n", name, box)
	}
	return nil
}

func graceQuery(grace int64) url.Values {
	query := url.Values{}
	if grace >= 0 {
		query.Set("gracePeriodSeconds", strconv.FormatInt(grace, 10))
	}
	return query
}

// actOn requests an action on a pod that Kubernetes' API does not have (stop, start, restart), and
// decodes the response unless to is nil.
func (c *cli) actOn(namespace, name, act string, query url.Values, to any) error {
	_, err := c.send(http.MethodPost, "/crisp/v1/namespaces/"+namespace+"/pods/"+name+"/"+act, query, nil, to)
	return err
}

// runningID returns the ID of a pod's container, "" if it is not running.
func runningID(pod *v1.Pod, name string) string {
	if s := statusOf(pod, name); s.State.Running != nil {
		return s.ContainerID
	}
	return ""
}
