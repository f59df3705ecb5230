package main

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
)

// debugCommand adds an ephemeral container to a pod.
func debugCommand(c *cli) *cobra.Command {
	var namespace, image, target, name, pull string
	var interactive, tty bool
	cmd := &cobra.Command{Use: "debug POD --image IMAGE [--target CONTAINER] [-i] [-t] [-- COMMAND...]", Short: "add an ephemeral container to a running pod", ValidArgsFunction: c.completePod}
	fs := cmd.Flags()
	namespaceFlag(fs, &namespace)
	fs.StringVar(&image, "image", "", "`image` of the new container")
	fs.StringVar(&target, "target", "", "see the processes of this `container`")
	fs.StringVarP(&name, "container", "c", "", "`name` of the new container (default: generated)")
	fs.StringVar(&pull, "pull", "", "`policy`: Always, IfNotPresent or Never")
	streamFlags(fs, &interactive, &tty, "connect standard input and attach", "allocate a terminal")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		rest, command := behindDash(cmd, args)
		if len(rest) != 1 || image == "" {
			return usageError("debug takes the name of a pod and --image IMAGE")
		}
		all, err := c.anyPods()
		if err != nil {
			return err
		}
		f, err := c.pick(all, namespace, rest[0])
		if err != nil {
			return err
		}
		path := pathOf(podKind, namespace, f.Pod.Name)
		var pod v1.Pod
		if err := c.fetch(path, nil, &pod); err != nil {
			return err
		}
		if name == "" {
			name = "debugger-" + strings.ToLower(rand.Text()[:5])
		}
		pod.Spec.EphemeralContainers = append(pod.Spec.EphemeralContainers, v1.EphemeralContainer{
			TargetContainerName: target,
			EphemeralContainerCommon: v1.EphemeralContainerCommon{
				Name: name, Image: image, Command: command, Stdin: interactive, StdinOnce: interactive, TTY: tty,
				ImagePullPolicy: v1.PullPolicy(pull),
			},
		})
		if _, err := c.send(http.MethodPut, path+"/ephemeralcontainers", nil, &pod, nil); err != nil {
			return err
		}
		if _, err = c.untilPod(namespace, pod.Name, 5*time.Minute, "container "+name+" has not started", func(now *v1.Pod) (bool, error) {
			state := statusOf(now, name).State
			if w := state.Waiting; w != nil && w.Message != "" {
				return false, fault.WrongState.Errorf("container %s: %s: %s", name, w.Reason, w.Message)
			}
			return state.Running != nil || state.Terminated != nil, nil
		}); err != nil {
			return err
		}
		if !interactive && !tty {
			fmt.Fprintf(c.stdout, "%s/%s started\n", pod.Name, name)
			return nil
		}
		return execError(c.attach(namespace, pod.Name, name, interactive, tty))
	}
	return cmd
}
