package main

import (
	"errors"
	"flag"
	"os"
	"time"

	"github.com/crisp-cri/crisp/agent/crix"
	"github.com/crisp-cri/crisp/internal/fault"
	v1 "k8s.io/api/core/v1"
	"k8s.io/cri-client/pkg/logs"
)

func namespaceFlag(fs *flag.FlagSet, namespace *string) {
	fs.StringVar(namespace, "n", "default", "`namespace` of the pod")
	fs.StringVar(namespace, "namespace", "default", "the same")
}

func containerFlag(fs *flag.FlagSet, container *string) {
	fs.StringVar(container, "c", "", "`name` of the container; without it, the first")
	fs.StringVar(container, "container", "", "the same")
}

func runLogs(c *cli, args []string) error {
	var namespace, container string
	var follow, previous, timestamps bool
	var tail int64
	var since time.Duration
	fs := c.flags("logs")
	namespaceFlag(fs, &namespace)
	containerFlag(fs, &container)
	fs.BoolVar(&follow, "f", false, "go on with what the container writes, until it ends")
	fs.BoolVar(&follow, "follow", false, "the same")
	fs.BoolVar(&previous, "p", false, "of the container's run before this one")
	fs.BoolVar(&previous, "previous", false, "the same")
	fs.BoolVar(&timestamps, "timestamps", false, "begin each line with its time")
	fs.Int64Var(&tail, "tail", -1, "only the last `N` lines")
	fs.DurationVar(&since, "since", 0, "only what is younger than this `duration`, such as 10s or 5m")
	rest, err := c.parse(fs, args)
	if err != nil {
		return err
	}
	if len(rest) != 1 {
		return usageError("logs takes the name of one pod")
	}
	runtime, _, err := c.connect()
	if err != nil {
		return err
	}
	f, err := c.pod(runtime, namespace, rest[0])
	if err != nil {
		return err
	}
	status, err := c.container(f, container)
	if err != nil {
		return err
	}
	id, err := runOf(f, status, previous)
	if err != nil {
		return err
	}
	resp, err := runtime.ContainerStatus(c.ctx, id, false)
	if err != nil {
		return crix.Fault(err)
	}
	path := resp.GetStatus().GetLogPath()
	if path == "" {
		return fault.NotFound.Errorf("container %s of pod %s keeps no log", status.Name, f.Pod.Name)
	}
	o := &logs.LogOptions{Follow: follow && !previous, Timestamp: timestamps}
	if tail >= 0 {
		o.TailLines = &tail
	}
	if since > 0 {
		o.Since = time.Now().Add(-since)
	}
	if _, err := os.Stat(path); err != nil {
		return fault.NotFound.Errorf("log of container %s: %v", status.Name, err)
	}
	err = crix.Fault(logs.ReadLogs(c.ctx, path, id, o, runtime, c.stdout, c.stderr))
	if c.ctx.Err() != nil || errors.Is(err, fault.NotFound) {
		return nil // we, or the container, ended while following
	}
	return err
}

// runOf returns the ID of the container's last run, or of the one before it.
func runOf(f crix.Found, s v1.ContainerStatus, previous bool) (string, error) {
	if previous {
		t := s.LastTerminationState.Terminated
		if t == nil {
			return "", fault.NotFound.Errorf("container %s of pod %s has not run before", s.Name, f.Pod.Name)
		}
		return runtimeID(t.ContainerID), nil
	}
	if s.ContainerID == "" {
		reason, message := f.Pod.Status.Reason, f.Pod.Status.Message
		if w := s.State.Waiting; w != nil && reason == "" {
			reason, message = w.Reason, w.Message
		}
		why := ""
		for _, text := range []string{reason, message} {
			if text != "" {
				why += ": " + text
			}
		}
		return "", fault.NotFound.Errorf("container %s of pod %s has not run yet%s", s.Name, f.Pod.Name, why)
	}
	return runtimeID(s.ContainerID), nil
}
