package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/crisp-cri/crisp/agent/api"
	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
)

// restartCommand has the agent stop containers, with their hooks and grace period; they
// start again as their pod's restart policy says. It returns when they have stopped.
func restartCommand(c *cli) *cobra.Command {
	var namespace, container string
	var grace int64
	var timeout time.Duration
	cmd := &cobra.Command{Use: "restart POD [-c CONTAINER]", Short: "restart the containers of a pod", ValidArgsFunction: c.podNames("")}
	fs := cmd.Flags()
	namespaceFlag(fs, &namespace)
	fs.StringVarP(&container, "container", "c", "", "`name` of the container; without it, all")
	fs.Int64Var(&grace, "grace-period", -1, "`seconds` that the containers have to end; less than 0 is what the pod says itself")
	fs.DurationVar(&timeout, "timeout", 15*time.Minute, "how long to wait until they have stopped")
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
		if len(rest) != 1 {
			return usageError("restart takes the name of one pod")
		}
		kind, _ := api.KindOf("pod")
		name := podName(rest[0])
		path := pathOf(kind, namespace, name)
		var before v1.Pod
		if err := c.fetch(path, nil, &before); err != nil {
			return err
		}
		query := url.Values{}
		if container != "" {
			query.Set("container", container)
		}
		if grace >= 0 {
			query.Set("gracePeriodSeconds", strconv.FormatInt(grace, 10))
		}
		resp, err := c.ask(http.MethodPost, "/crisp/v1/namespaces/"+before.Namespace+"/pods/"+name+"/restart", query, nil, nil)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		var asked struct{ Items []string }
		if err := json.NewDecoder(resp.Body).Decode(&asked); err != nil {
			return err
		}
		for _, box := range asked.Items {
			was := runningID(&before, box)
			err := c.until(timeout, name+"/"+box+" has not stopped", func() (bool, error) {
				var now v1.Pod
				err := c.fetch(path, nil, &now)
				id := runningID(&now, box)
				return id == "" || id != was, err
			})
			if err != nil {
				return err
			}
			fmt.Fprintf(c.stdout, "%s/%s stopped\n", name, box)
		}
		return nil
	}
	return cmd
}

// runningID is the ID of a container of a pod, "" unless it runs.
func runningID(pod *v1.Pod, name string) string {
	for _, s := range pod.Status.ContainerStatuses {
		if s.Name == name && s.State.Running != nil {
			return s.ContainerID
		}
	}
	return ""
}
