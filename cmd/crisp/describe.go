package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/status"
	"github.com/crisp-cri/crisp/apiserver/api"
	"github.com/crisp-cri/crisp/apiserver/startup"
	"github.com/crisp-cri/crisp/apiserver/table"
	"github.com/crisp-cri/crisp/apiserver/why"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/pulls"
	"github.com/crisp-cri/crisp/internal/timeline"
	"github.com/crisp-cri/crisp/internal/waterfall"
	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

func describeCommand(c *cli) *cobra.Command {
	var s selection
	cmd := &cobra.Command{Use: "describe POD|TYPE/NAME... [-l SELECTOR]", Short: "show details of an object", ValidArgsFunction: c.completeNamed}
	fs := cmd.Flags()
	s.flags(fs)
	return runs(cmd, func(rest []string) error {
		what, err := c.toDescribe(rest, s)
		if err != nil {
			return err
		}
		for _, t := range what {
			if t.kind.Name == "Pod" {
				err = c.describePod(t.namespace, t.name)
			} else if t.kind.Name == "Deployment" || t.kind.Name == "StatefulSet" {
				err = c.describeDeployment(t)
			} else {
				err = c.describeObject(t.objectName, t.namespace)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// toDescribe returns the objects that the arguments name. Pods need no agent.
func (c *cli) toDescribe(args []string, s selection) (list []object, err error) {
	what, err := objectNames(args, s.selector == "" && !s.all)
	if err == nil && len(what) == 0 && s.selector != "" {
		what = []objectName{{podKind, ""}}
	}
	if err != nil || len(what) == 0 {
		return nil, cmp.Or(err, usageError("describe takes what to describe: pod/NAME"))
	}
	items, _, err := c.gather(what, getOptions{selection: s, output: "name"})
	for _, u := range items {
		k, _ := api.KindOf(u.GetKind())
		list = append(list, objectOf(k, &u))
	}
	return list, err
}

// describeDeployment prints a Deployment or a StatefulSet and its pods in brief, and why the first is not ready.
func (c *cli) describeDeployment(t object) error {
	o := getOptions{selection: selection{namespace: t.namespace}, output: "wide"}
	if err := c.get([]objectName{t.objectName}, o); err != nil {
		return err
	}
	pods, _ := c.selected([]string{t.String()}, o.selection) // it may have none
	slices.SortStableFunc(pods, func(a, b criruntime.Found) int { return best(b, a) })
	for _, f := range pods {
		n, all := status.Count(f.Pod)
		fmt.Fprintf(c.stdout, "Pod: %s %d/%d %s %s\n", f.Pod.Name, n, all, status.Word(f.Pod), f.Pod.Spec.Containers[0].Image)
	}
	if len(pods) > 0 && !ready(pods[0].Pod) {
		return cmp.Or(c.why(t.namespace, pods[0]), c.describeEvents(t.namespace, t.objectName))
	}
	return c.describeEvents(t.namespace, t.objectName)
}

// describeObject prints an object as it is, and its events.
func (c *cli) describeObject(t objectName, namespace string) error {
	items, _, err := c.gather([]objectName{t}, getOptions{selection: selection{namespace: namespace}})
	if err != nil {
		return err
	}
	if t.kind.Name == "Secret" {
		for _, u := range items {
			data, _ := u.Object["data"].(map[string]any)
			for key, value := range data {
				text, _ := value.(string)
				data[key] = fmt.Sprintf("%d bytes of base64", len(text))
			}
		}
	}
	if err := c.printValue(listOf(items, t.name != ""), "yaml"); err != nil {
		return err
	}
	if t.name == "" {
		return nil
	}
	return c.describeEvents(namespace, t)
}

func (c *cli) describePod(namespace, name string) error {
	all, err := c.anyPods()
	if err != nil {
		return err
	}
	f, err := c.pick(all, namespace, name)
	if err != nil {
		return err
	}
	pod := f.Pod
	t := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	line := fields(t, "")
	line("Name", pod.Name)
	line("Namespace", pod.Namespace)
	line("UID", pod.UID)
	line("Source", strings.TrimSpace(pod.Annotations[manifest.AnnotationSource]+" "+pod.Annotations[manifest.AnnotationFile]))
	line("Node", pod.Spec.NodeName)
	line("Created", when(pod.CreationTimestamp.Time))
	line("Labels", strings.ReplaceAll(labels.Set(pod.Labels).String(), ",", ", "))
	line("Status", status.Word(pod))
	line("Pulling", c.pullOf(pod))
	line("Reason", pod.Status.Reason)
	line("Message", pod.Status.Message)
	line("IP", pod.Status.PodIP)
	line("QoS", pod.Status.QOSClass)
	line("Sandbox", sandbox(f))
	if pod.DeletionTimestamp != nil {
		line("Ends", when(pod.DeletionTimestamp.Time))
	}
	st := pod.Status
	for _, list := range []struct {
		head   string
		specs  []v1.Container
		states []v1.ContainerStatus
	}{{"Init containers", pod.Spec.InitContainers, st.InitContainerStatuses}, {"Containers", pod.Spec.Containers, st.ContainerStatuses}, {"Ephemeral containers", podsync.Ephemeral(&pod.Spec), st.EphemeralContainerStatuses}} {
		if len(list.specs) == 0 {
			continue
		}
		fmt.Fprintf(t, "%s:\n", list.head)
		for _, spec := range list.specs {
			describeContainer(t, spec, list.states)
		}
	}
	if len(pod.Status.Conditions) > 0 {
		fmt.Fprintln(t, "Conditions:")
		for _, cond := range pod.Status.Conditions {
			fmt.Fprintf(t, "  %s\t%s\t%s\n", cond.Type, cond.Status, strings.TrimSpace(cond.Reason+" "+cond.Message))
		}
	}
	if len(pod.Spec.Volumes) > 0 {
		fmt.Fprintln(t, "Volumes:")
		for _, v := range pod.Spec.Volumes {
			fmt.Fprintf(t, "  %s\t%s\n", v.Name, volumeWord(v))
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if err := c.describeStartup(f); err != nil {
		return err
	}
	return c.describeEvents(pod.Namespace, objectName{podKind, pod.Name})
}

// fields returns a function that prints a field, unless its value is empty.
func fields(w io.Writer, indent string) func(key string, value any) {
	return func(key string, value any) {
		if text := fmt.Sprint(value); text != "" {
			fmt.Fprintf(w, "%s%s:\t%s\n", indent, key, text)
		}
	}
}

func describeContainer(w io.Writer, spec v1.Container, states []v1.ContainerStatus) {
	fmt.Fprintf(w, "  %s:\n", spec.Name)
	line := fields(w, "    ")
	line("Image", spec.Image)
	line("Command", strings.Join(spec.Command, " "))
	line("Args", strings.Join(spec.Args, " "))
	for _, p := range spec.Ports {
		text := fmt.Sprintf("%d/%s", p.ContainerPort, p.Protocol)
		if p.HostPort > 0 {
			text += fmt.Sprintf(" (host port %d)", p.HostPort)
		}
		line("Port", text)
	}
	line("Resources", table.Resources(spec.Resources))
	if s := podsync.StatusOf(spec.Name, states); s != nil {
		line("ID", s.ContainerID)
		line("Image ID", s.ImageID)
		line("State", stateText(s.State))
		if s.LastTerminationState.Terminated != nil {
			line("Last state", stateText(s.LastTerminationState))
		}
		line("Ready", s.Ready)
		line("Restarts", s.RestartCount)
	}
	for _, m := range spec.VolumeMounts {
		text := m.MountPath + " from " + m.Name
		if m.ReadOnly {
			text += " (read-only)"
		}
		line("Mount", text)
	}
}

func stateText(s v1.ContainerState) string {
	switch {
	case s.Running != nil:
		return "running since " + when(s.Running.StartedAt.Time)
	case s.Terminated != nil:
		t := s.Terminated
		text := fmt.Sprintf("ended with code %d (%s), %s", t.ExitCode, cmp.Or(t.Reason, "no reason"), when(t.FinishedAt.Time))
		if t.Message != "" {
			text += ": " + strings.TrimSpace(t.Message)
		}
		return text
	case s.Waiting != nil:
		return strings.TrimSuffix("waiting: "+s.Waiting.Reason+": "+s.Waiting.Message, ": ")
	}
	return "unknown"
}

func when(t time.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return t.Local().Format(time.RFC3339)
}

// volumeWord is what a volume is.
func volumeWord(v v1.Volume) string {
	switch {
	case v.HostPath != nil:
		return "host path " + v.HostPath.Path
	case v.EmptyDir != nil:
		return strings.TrimSpace("empty directory " + string(v.EmptyDir.Medium))
	case v.ConfigMap != nil:
		return "config map " + v.ConfigMap.Name
	case v.Secret != nil:
		return "secret " + v.Secret.SecretName
	case v.PersistentVolumeClaim != nil:
		return "claim " + v.PersistentVolumeClaim.ClaimName
	case v.Image != nil:
		return "image " + v.Image.Reference
	case v.Projected != nil:
		return "projected"
	case v.DownwardAPI != nil:
		return "downward API"
	}
	return "other"
}

func (c *cli) describeEvents(namespace string, t objectName) error {
	list, err := c.events(namespace, t)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		_, err := fmt.Fprintln(c.stdout, "Events: none")
		return err
	}
	fmt.Fprintln(c.stdout, "Events:")
	w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	for _, e := range list {
		fmt.Fprintln(w, "  "+strings.Join(eventCells(e), "\t"))
	}
	return w.Flush()
}

func whyCommand(c *cli) *cobra.Command {
	var namespace string
	cmd := &cobra.Command{Use: "why POD", Args: takes(1, 1, "why takes one pod"), Short: "explain in one sentence why a pod is not ready, or what its startup took", ValidArgsFunction: c.completePod}
	namespaceFlag(cmd.Flags(), &namespace)
	return runs(cmd, func(rest []string) error {
		f, err := c.connectToPod(namespace, rest[0])
		if err != nil {
			return err
		}
		return c.why(namespace, f)
	})
}

func (c *cli) why(namespace string, f criruntime.Found) error {
	facts, err := c.facts(namespace, f)
	if err != nil {
		return err
	}
	report, err := c.startupOf(f)
	if err != nil {
		return err
	}
	facts.Seen, facts.Ready, facts.Stages = report.Seen, report.Ready, report.Stages
	_, err = fmt.Fprintln(c.stdout, why.Sentence(facts, time.Now()))
	return err
}

// facts returns what is known of a pod beside its stages.
func (c *cli) facts(namespace string, f criruntime.Found) (why.Facts, error) {
	facts := why.Facts{Pod: f.Pod, Logs: lastLines{c, f}}
	if p, ok := pulls.Of(c.pulls(), namespace+"/"+f.Pod.Name); ok {
		facts.Pull = &p
	}
	var err error
	if facts.Events, err = c.events(namespace, objectName{podKind, f.Pod.Name}); err != nil {
		return facts, err
	}
	// Events of another pod with the same name explain nothing.
	facts.Events = slices.DeleteFunc(facts.Events, func(e v1.Event) bool { return e.InvolvedObject.UID != f.Pod.UID })
	return facts, nil
}

// startupOf returns the timeline of a pod's start: from the agent with the runtime's stages or, for
// a pod that is not the agent's, such as a kubelet's, only from the runtime.
func (c *cli) startupOf(f criruntime.Found) (startup.Report, error) {
	var r startup.Report
	if c.agentRuns() {
		err := c.fetch("/crisp/v1/namespaces/"+f.Pod.Namespace+"/pods/"+f.Pod.Name+"/startup", nil, &r)
		if err == nil || !errors.Is(err, fault.NotFound) {
			return r, err
		}
	}
	if c.connect() != nil { // the agent has the pod, which is enough to print it
		return r, nil
	}
	r.Pod = timeline.Pod{UID: string(f.Pod.UID), Namespace: f.Pod.Namespace, Name: f.Pod.Name}
	r.Stages = criruntime.Startup(c.ctx, c.runtime, string(f.Pod.UID))
	if len(r.Stages) > 0 {
		r.Seen = r.Stages[0].Begin
		for _, s := range r.Stages { // the runtime does not know when a pod is ready
			if s.Name == "start" && s.End.After(r.Ready) {
				r.Ready = s.End
			}
		}
	}
	return r, nil
}

// barWidth is the width of a waterfall in characters.
const barWidth = 40

// describeStartup prints the timeline of the pod's start, if it is known.
func (c *cli) describeStartup(f criruntime.Found) error {
	r, err := c.startupOf(f)
	if err != nil || len(r.Stages) == 0 {
		return err
	}
	now := time.Now()
	until := r.Until(now)
	switch {
	case !r.Ready.IsZero():
		fmt.Fprintf(c.stdout, "Start-up: %s, %.0f %% of which are accounted for\n", waterfall.Brief(until.Sub(r.Seen)), 100*r.Covered(now))
	case ready(f.Pod):
		until = r.Seen
		for _, s := range r.Stages {
			if s.End.After(until) {
				until = s.End
			}
		}
		fmt.Fprintln(c.stdout, "Start-up:")
	default:
		fmt.Fprintf(c.stdout, "Start-up: not ready for %s, %.0f %% of which are accounted for\n", waterfall.Brief(until.Sub(r.Seen)), 100*r.Covered(now))
	}
	t := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "  Stage\tbegins\ttakes\t\t")
	for _, row := range waterfall.Draw(r.Stages, r.Seen, until, barWidth) {
		fmt.Fprintf(t, "  %s\t%s\t%s\t|%s|\t%s\n", row.Label, row.Begin, row.Took, row.Bar, strings.Join(strings.Fields(row.Note), " "))
	}
	return t.Flush()
}

// lastLines are the ends of the logs of a pod.
type lastLines struct {
	c   *cli
	pod criruntime.Found
}

// LastLine implements why.Logs.
func (l lastLines) LastLine(container string) string {
	var line strings.Builder
	status := statusOf(l.pod.Pod, container)
	_ = l.c.logsOf(l.pod, status, logFlags{tail: 1, previous: status.State.Terminated == nil}, &line, &line) // it may have none
	return line.String()
}
