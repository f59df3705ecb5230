package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/status"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
)

// A podAct has the flags of the commands that act on pods.
type podAct struct {
	selection
	every     bool
	container string
	grace     int64
	timeout   time.Duration
}

// actCommand completes a command that acts on the pods that its arguments name or a selector
// matches, or on all of the namespace: it takes each step for all of them before the next. A pod for
// which one fails holds up no other.
func (c *cli) actCommand(cmd *cobra.Command, o *podAct, steps ...func(*v1.Pod) error) *cobra.Command {
	cmd.ValidArgsFunction = c.completePods
	o.oneFlags(cmd.Flags())
	return runs(cmd, func(args []string) error {
		if len(args) == 0 && o.selector == "" && !o.every {
			return usageError("%s takes the names of pods", cmd.Name())
		}
		pods, err := c.selected(args, o.selection)
		if err != nil {
			return err
		}
		var errs []error
		for _, step := range steps {
			pods = slices.DeleteFunc(pods, func(f criruntime.Found) bool {
				err := step(f.Pod)
				errs = append(errs, err)
				return err != nil
			})
		}
		return errors.Join(errs...)
	})
}

// stopCommand makes the agent stop pods, without deleting them: their volumes, logs and exit codes
// are kept, and they can be started again.
func stopCommand(c *cli) *cobra.Command {
	var o podAct
	cmd := &cobra.Command{Use: "stop POD... | -l SELECTOR | --all [--grace-period N]", Short: "stop pods and keep them; they stay stopped, even after a reboot, until start"}
	fs := cmd.Flags()
	fs.BoolVar(&o.every, "all", false, "all pods of the namespace")
	graceFlag(fs, &o.grace)
	fs.Int64VarP(&o.grace, "time", "t", -1, "the same `seconds`, docker's name")
	fs.DurationVar(&o.timeout, "timeout", 15*time.Minute, "how long to wait until they have stopped")
	return c.actCommand(cmd, &o, func(pod *v1.Pod) error {
		return c.actOn(pod, "stop", graceQuery(o.grace), nil)
	}, func(pod *v1.Pod) error {
		_, err := c.untilPod(pod.Namespace, pod.Name, o.timeout, "pod "+pod.Name+" has not stopped", func(now *v1.Pod) (bool, error) {
			return podsync.Halted(&now.Status), nil
		})
		if err == nil {
			fmt.Fprintf(c.stdout, "pod/%s stopped\n", pod.Name)
		}
		return err
	})
}

// startCommand makes the agent start stopped pods again. It waits until a container of each pod
// runs, or the pod has ended for good.
func startCommand(c *cli) *cobra.Command {
	var o podAct
	cmd := &cobra.Command{Use: "start POD... | -l SELECTOR | --all", Short: "start stopped pods again, and evicted ones as soon as they fit"}
	fs := cmd.Flags()
	fs.BoolVar(&o.every, "all", false, "all stopped pods of the namespace")
	fs.DurationVar(&o.timeout, "timeout", time.Minute, "how long to wait until they run")
	return c.actCommand(cmd, &o, func(pod *v1.Pod) error {
		if o.every && pod.Status.Reason != podsync.StoppedReason {
			return nil
		}
		if err := c.actOn(pod, "start", nil, nil); err != nil {
			return err
		}
		err := c.untilSays(o.timeout, "pod "+pod.Name+" does not run", func() (bool, string, error) {
			var now v1.Pod
			if err := c.fetch(pathOf(podKind, pod.Namespace, pod.Name), nil, &now); err != nil {
				return false, "", err
			}
			runs := slices.ContainsFunc(now.Status.ContainerStatuses, func(s v1.ContainerStatus) bool { return s.State.Running != nil })
			return runs || podsync.Terminal(&now.Status) && !podsync.Evicted(&now, &now.Status), status.Word(&now), nil
		})
		if err == nil {
			fmt.Fprintf(c.stdout, "pod/%s started\n", pod.Name)
		}
		return err
	})
}

// restartCommand makes the agent stop containers, with their hooks and grace period; they start
// again as their pod's restart policy says. It returns when they have stopped.
func restartCommand(c *cli) *cobra.Command {
	var o podAct
	cmd := &cobra.Command{Use: "restart POD|TYPE/NAME... | -l SELECTOR [-c CONTAINER]", Short: "restart the containers of pods"}
	fs := cmd.Flags()
	fs.StringVarP(&o.container, "container", "c", "", "`name` of the container; without it, all")
	graceFlag(fs, &o.grace)
	fs.DurationVar(&o.timeout, "timeout", 15*time.Minute, "how long to wait until they have stopped")
	return c.actCommand(cmd, &o, func(pod *v1.Pod) error {
		var before v1.Pod
		if err := c.fetch(pathOf(podKind, pod.Namespace, pod.Name), nil, &before); err != nil {
			return err
		}
		query := graceQuery(o.grace)
		if o.container != "" {
			query.Set("container", o.container)
		}
		var asked struct{ Items []string }
		if err := c.actOn(pod, "restart", query, &asked); err != nil {
			return err
		}
		for _, container := range asked.Items {
			was := runningID(&before, container)
			if _, err := c.untilPod(pod.Namespace, pod.Name, o.timeout, pod.Name+"/"+container+" has not stopped", func(now *v1.Pod) (bool, error) {
				id := runningID(now, container)
				return id == "" || id != was, nil
			}); err != nil {
				return err
			}
			fmt.Fprintf(c.stdout, "%s/%s restarted\n", pod.Name, container)
		}
		return nil
	})
}

// graceFlag adds the flag for the grace period of containers.
func graceFlag(fs *pflag.FlagSet, grace *int64) {
	fs.Int64Var(grace, "grace-period", -1, "grace period of containers in `seconds`; negative uses each pod's own")
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
func (c *cli) actOn(pod *v1.Pod, act string, query url.Values, to any) error {
	_, err := c.send(http.MethodPost, "/crisp/v1/namespaces/"+pod.Namespace+"/pods/"+pod.Name+"/"+act, query, nil, to)
	return err
}

// runningID returns the ID of a pod's container, "" if it is not running.
func runningID(pod *v1.Pod, name string) string {
	if s := statusOf(pod, name); s.State.Running != nil {
		return s.ContainerID
	}
	return ""
}

// drainCommand makes the agent stop all pods before maintenance.
func drainCommand(c *cli) *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{Use: "drain", Args: takesNone(": it is about this node"), Short: "stop all pods, those of the lowest priority first, and keep new ones from starting, until uncordon"}
	cmd.Flags().DurationVar(&timeout, "timeout", 15*time.Minute, "how long to wait until they have stopped")
	return runs(cmd, func(_ []string) error {
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
				case !podsync.Halted(&pod.Status):
					left++
				case !reported[name]:
					reported[name] = true
					fmt.Fprintf(c.stdout, "pod %s: %s\n", name, status.Word(pod))
				}
			}
			return left == 0, nil
		})
	})
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
