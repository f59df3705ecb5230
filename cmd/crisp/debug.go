package main

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/api"
	"github.com/crisp-cri/crisp/internal/fault"
	v1 "k8s.io/api/core/v1"
)

// runDebug adds an ephemeral container to a pod.
func runDebug(c *cli, args []string) error {
	var namespace, image, target, name, pull string
	var interactive, tty bool
	fs := c.flags("debug")
	namespaceFlag(fs, &namespace)
	fs.StringVar(&image, "image", "", "`image` of the new container")
	fs.StringVar(&target, "target", "", "see the processes of this `container`")
	fs.StringVar(&name, "c", "", "`name` of the new container (default: made up)")
	fs.StringVar(&pull, "pull", "", "`policy`: Always, IfNotPresent or Never")
	fs.BoolVar(&interactive, "i", false, "give it our standard input and attach to it")
	fs.BoolVar(&tty, "t", false, "give it a terminal")
	own, cmd := args, []string(nil)
	if cut := slices.Index(args, "--"); cut >= 0 {
		own, cmd = args[:cut], args[cut+1:]
	}
	rest, err := c.parse(fs, own)
	if err != nil {
		return err
	}
	if len(rest) != 1 || image == "" {
		return usageError("debug takes the name of a pod and --image IMAGE")
	}
	kind, _ := api.KindOf("pod")
	path := pathOf(kind, namespace, podName(rest[0]))
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
			Name: name, Image: image, Command: cmd, Stdin: interactive, StdinOnce: interactive, TTY: tty,
			ImagePullPolicy: v1.PullPolicy(pull),
		},
	})
	text, err := json.Marshal(&pod)
	if err != nil {
		return err
	}
	resp, err := c.ask(http.MethodPut, path+"/ephemeralcontainers", nil, text, nil)
	if err != nil {
		return err
	}
	resp.Body.Close()
	err = c.until(5*time.Minute, "container "+name+" has not started", func() (bool, error) {
		var now v1.Pod
		err := c.fetch(path, nil, &now)
		state := containerState(&now, name)
		if w := state.Waiting; w != nil && w.Message != "" {
			return false, fault.WrongState.Errorf("container %s: %s: %s", name, w.Reason, w.Message)
		}
		return state.Running != nil || state.Terminated != nil, err
	})
	if err != nil {
		return err
	}
	if !interactive && !tty {
		fmt.Fprintf(c.stdout, "%s/%s started\n", pod.Name, name)
		return nil
	}
	if err := c.attach(namespace, pod.Name, name, interactive, tty); err != nil {
		return execError(err)
	}
	return nil
}
