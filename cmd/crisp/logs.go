package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/status"
	"github.com/crisp-cri/crisp/apiserver/api"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/logread"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"
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
	var s selection
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
	return runs(cmd, func(rest []string) error {
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
		if err := c.connect(); err != nil {
			return err
		}
		return c.logsOfAll(pods, container, o)
	})
}

// logs prints the logs of a pod's container, or of all its containers.
func (c *cli) logs(namespace, pod, container string, o logFlags) error {
	f, err := c.connectToPod(namespace, pod)
	if err != nil {
		return err
	}
	if !o.all {
		status, err := c.container(f, container)
		if err != nil {
			return err
		}
		return c.logsOf(f, status, o, c.stdout, c.stderr)
	}
	return c.logsOfAll([]criruntime.Found{f}, container, o)
}

// logsOfAll prints the logs of one container of each pod, or of all containers: concurrently if
// they are followed, else one after the other.
func (c *cli) logsOfAll(pods []criruntime.Found, container string, o logFlags) error {
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
				err := c.logsOf(f, status, o, &lines{to: c.stdout, mu: &mu}, &lines{to: c.stderr, mu: &mu})
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
func (c *cli) logsOf(f criruntime.Found, status v1.ContainerStatus, flags logFlags, stdout, stderr io.Writer) error {
	id, err := runOf(f, status, flags.previous)
	if err != nil {
		return err
	}
	resp, err := c.runtime.ContainerStatus(c.ctx, id, false)
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
		o.Running = criruntime.Running(c.runtime, id)
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

// events returns the events of a namespace ("" for all), or of the last object of a name; the latest at
// the end. If no agent runs it reads the agent's file.
func (c *cli) events(namespace string, on objectName) ([]v1.Event, error) {
	var list []v1.Event
	var events v1.EventList
	if err := c.fetch("/api/v1/events", nil, &events); err == nil {
		list = events.Items
	} else if list, err = status.ReadEvents(filepath.Join(c.agentRoot, "events")); err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(list, func(e v1.Event) bool {
		o := e.InvolvedObject
		return namespace != "" && o.Kind != "Node" && e.Namespace != namespace || on.name != "" && (o.Kind != on.kind.Name || o.Name != on.name)
	})
	if on.name == "" || len(list) == 0 {
		return list, nil
	}
	last := list[len(list)-1].InvolvedObject.UID
	return slices.DeleteFunc(list, func(e v1.Event) bool { return e.InvolvedObject.UID != last }), nil
}

func eventsCommand(c *cli) *cobra.Command {
	o := getOptions{}
	var of string
	cmd := &cobra.Command{Use: "events [--for pod/NAME] [-w]", Args: takesNone(""), Short: "show events"}
	fs := cmd.Flags()
	namespaceFlag(fs, &o.namespace)
	fs.BoolVarP(&o.all, "all-namespaces", "A", false, "of all namespaces")
	fs.StringVar(&of, "for", "", "only of this `object`, such as pod/web")
	outputFlag(fs, &o.output, "json", "yaml", "name")
	fs.BoolVarP(&o.watch, "watch", "w", false, "keep printing new events")
	return runs(cmd, func(_ []string) error {
		var on objectName
		if of != "" {
			list, err := objectNames([]string{of}, true)
			if err != nil {
				return err
			}
			on = list[0]
		}
		if o.watch {
			if on.name != "" {
				o.fields = "involvedObject.kind=" + on.kind.Name + ",involvedObject.name=" + on.name
			}
			kind, _ := api.KindOf("event")
			return c.watch([]objectName{{kind, ""}}, o)
		}
		list, err := c.events(o.within(), on)
		if err != nil {
			return err
		}
		switch o.output {
		case "json", "yaml":
			return c.printValue(map[string]any{"apiVersion": "v1", "kind": "List", "items": list}, o.output)
		case "name":
			for _, e := range list {
				fmt.Fprintln(c.stdout, "event/"+e.Name)
			}
			return nil
		}
		if len(list) == 0 {
			fmt.Fprintln(c.stderr, "crisp: no events")
			return nil
		}
		t := c.columns("LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE")
		for _, e := range list {
			row(t, false, "", eventCells(e))
		}
		return t.Flush()
	})
}

func eventCells(e v1.Event) []string {
	seen := duration.HumanDuration(time.Since(e.LastTimestamp.Time))
	if e.Count > 1 {
		seen += fmt.Sprintf(" (x%d over %s)", e.Count, duration.HumanDuration(time.Since(e.FirstTimestamp.Time)))
	}
	object := strings.ToLower(e.InvolvedObject.Kind) + "/" + e.InvolvedObject.Name
	if _, container, ok := strings.Cut(e.InvolvedObject.FieldPath, "{"); ok {
		object += "/" + strings.TrimSuffix(container, "}")
	}
	return []string{seen, cmp.Or(e.Type, "Normal"), e.Reason, object, e.Message}
}
