package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/logread"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
)

func containerFlag(fs *pflag.FlagSet, container *string) {
	fs.StringVarP(container, "container", "c", "", "`name` of the container; without it, the first")
}

// logFlags has the flags of logs.
type logFlags struct {
	follow, previous, timestamps, all, prefix bool
	tail                                      int64
	since                                     time.Duration
}

func logsCommand(c *cli) *cobra.Command {
	var s scope
	var container string
	var allPods bool
	var o logFlags
	cmd := &cobra.Command{Use: "logs POD|TYPE/NAME | -l SELECTOR [-c CONTAINER] [-f] [-p] [--tail N] [--since 5m] [--timestamps] [--all-containers]", Short: "print the logs of containers", ValidArgsFunction: c.completePod}
	fs := cmd.Flags()
	s.oneFlags(fs)
	containerFlag(fs, &container)
	fs.BoolVarP(&o.follow, "follow", "f", false, "keep printing the container's output until it ends")
	fs.BoolVarP(&o.previous, "previous", "p", false, "of the container's previous run")
	fs.BoolVar(&o.timestamps, "timestamps", false, "prefix each line with its time")
	fs.BoolVar(&o.all, "all-containers", false, "of all containers of the pod")
	fs.BoolVar(&allPods, "all-pods", false, "of all pods of TYPE/NAME instead of one of them")
	fs.BoolVar(&o.prefix, "prefix", false, "prefix each line with the names of pod and container")
	fs.Int64Var(&o.tail, "tail", -1, "only the last `N` lines; with -l the last 10 by default")
	fs.DurationVar(&o.since, "since", 0, "only lines newer than this `duration`, such as 10s or 5m")
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
		if len(rest) > 1 || (len(rest) == 0) == (s.selector == "") {
			return usageError("logs takes the name of one pod, or -l SELECTOR")
		}
		if s.selector != "" && !fs.Changed("tail") {
			o.tail = 10
		}
		if !allPods && s.selector == "" {
			return c.logs(s.namespace, rest[0], container, o)
		}
		pods, err := c.selected(rest, s)
		if err != nil {
			return err
		}
		if len(pods) == 0 {
			return fault.NotFound.Errorf("there is no pod with %s in namespace %s", s.selector, s.namespace)
		}
		runtime, _, err := c.connect()
		if err != nil {
			return err
		}
		return c.logsOfAll(runtime, pods, container, o)
	}
	return cmd
}

// logs prints the logs of a pod's container, or of all its containers.
func (c *cli) logs(namespace, pod, container string, o logFlags) error {
	runtime, f, err := c.connectToPod(namespace, pod)
	if err != nil {
		return err
	}
	if !o.all {
		status, err := c.container(f, container)
		if err != nil {
			return err
		}
		return c.logsOf(runtime, f, status, o, c.stdout, c.stderr)
	}
	return c.logsOfAll(runtime, []criruntime.Found{f}, container, o)
}

// logsOfAll prints the logs of one container of each pod, or of all containers: concurrently if
// they are followed, else one after the other.
func (c *cli) logsOfAll(runtime internalapi.RuntimeService, pods []criruntime.Found, container string, o logFlags) error {
	var wg sync.WaitGroup
	var mu sync.Mutex // guards output and errs
	var errs []error
	for _, f := range pods {
		all := statusesOf(f.Pod)
		if !o.all {
			status, err := c.container(f, container)
			if err != nil {
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
				continue
			}
			all = []v1.ContainerStatus{status}
		}
		for _, status := range all {
			if status.ContainerID == "" {
				continue
			}
			read := func() {
				err := c.logsOf(runtime, f, status, o, &lines{to: c.stdout, mu: &mu}, &lines{to: c.stderr, mu: &mu})
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
			if o.follow {
				wg.Go(read)
			} else {
				read()
			}
		}
	}
	wg.Wait()
	return errors.Join(errs...)
}

// logsOf prints the log of one container.
func (c *cli) logsOf(runtime internalapi.RuntimeService, f criruntime.Found, status v1.ContainerStatus, flags logFlags, stdout, stderr io.Writer) error {
	id, err := runOf(f, status, flags.previous)
	if err != nil {
		return err
	}
	resp, err := runtime.ContainerStatus(c.ctx, id, false)
	if err != nil {
		return criruntime.Fault(err)
	}
	path := resp.GetStatus().GetLogPath()
	if path == "" {
		return fault.NotFound.Errorf("container %s of pod %s keeps no log", status.Name, f.Pod.Name)
	}
	l, err := logread.Open(path)
	if err != nil {
		return fault.NotFound.Errorf("log of container %s: %v", status.Name, err)
	}
	defer l.Close()
	if flags.prefix {
		prefix := "[pod/" + f.Pod.Name + "/" + status.Name + "] "
		stdout, stderr = &lines{to: stdout, prefix: prefix}, &lines{to: stderr, prefix: prefix}
	}
	o := logread.Options{Stdout: stdout, Stderr: stderr, Timestamps: flags.timestamps}
	if flags.tail >= 0 {
		o.Tail = &flags.tail
	}
	if flags.since > 0 {
		o.Since = time.Now().Add(-flags.since)
	}
	if flags.follow && !flags.previous {
		o.Running = criruntime.Running(runtime, id)
	}
	damaged := 0
	o.Damaged = func(error) { damaged++ }
	err = l.Copy(c.ctx, o)
	if damaged > 0 {
		fmt.Fprintf(c.stderr, "crisp: %d records of the log of container %s cannot be read\n", damaged, status.Name)
	}
	if c.ctx.Err() != nil {
		return nil // cancelled by the user
	}
	return err
}

// lines is a writer that adds a prefix to each line. Writers that share mu do not mix their writes.
type lines struct {
	to     io.Writer
	prefix string
	mu     *sync.Mutex
	inside bool // the last write ended within a line
}

func (l *lines) Write(p []byte) (int, error) {
	if l.mu != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
	}
	var text []byte
	for line := range bytes.Lines(p) {
		if !l.inside {
			text = append(text, l.prefix...)
		}
		text = append(text, line...)
		l.inside = !bytes.HasSuffix(line, []byte("\n"))
	}
	if _, err := l.to.Write(text); err != nil {
		return 0, err
	}
	return len(p), nil
}

// runOf returns the ID of the container's last instance, or of the previous one.
func runOf(f criruntime.Found, s v1.ContainerStatus, previous bool) (string, error) {
	if previous {
		t := s.LastTerminationState.Terminated
		if t == nil {
			return "", fault.NotFound.Errorf("container %s of pod %s has not run before", s.Name, f.Pod.Name)
		}
		return podsync.RuntimeID(t.ContainerID), nil
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
	return podsync.RuntimeID(s.ContainerID), nil
}
