package page

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/apiserver/startup"
	"github.com/crisp-cri/crisp/apiserver/table"
	"github.com/crisp-cri/crisp/apiserver/why"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/waterfall"
)

// podPage is the data of a pod's page.
type podPage struct {
	podRow
	Why        string
	Facts      []fact
	Plots      []plot
	Containers []containerRow
	Conditions []v1.PodCondition
	Covered    string // share of the start that the stages account for, in percent
	Startup    string // duration of the start, finished or not
	Goes       bool   // it is not finished
	Waterfall  []span
	Events     []eventRow
	YAML       string
}

type fact struct{ Name, Value string }

type containerRow struct {
	Kind, Name, Image string
	State, Last       string
	Class             string
	Ready             bool
	Runs, HasRun      bool // runs now; has ever run
	Restarts          int32
	Resources         string
}

type eventRow struct {
	Age, Class, Reason, Message, Container string
	Count                                  int32
}

// maxEvents is the number of a pod's newest events that the page shows.
const maxEvents = 100

func (s *Server) pod(w http.ResponseWriter, r *http.Request) error {
	var object map[string]any // the pod from the API, for its YAML
	var pod v1.Pod
	var events v1.EventList
	path := podPath("/api/v1", r)
	if err := s.ask(r.Context(), path, &object); err != nil {
		return err
	}
	if err := s.ask(r.Context(), path, &pod); err != nil {
		return err
	}
	if err := s.ask(r.Context(), "/api/v1/events", &events); err != nil {
		return err
	}
	now := time.Now()
	under := s.o.Pulls.List(r.Context())
	body := podPage{podRow: s.row(&pod, under, now), Conditions: pod.Status.Conditions, Containers: containers(&pod, now), Facts: factsOf(&pod)}
	body.Plots = plots(s.samples.of(string(pod.UID)), limits(&pod), now)
	facts := s.facts(r.Context(), &pod, events.Items, under)
	var report startup.Report
	switch err := s.ask(r.Context(), podPath("/crisp/v1", r)+"/startup", &report); fault.KindOf(err) {
	case fault.NotFound: // its start was not recorded
	default:
		if err != nil {
			return err
		}
		facts.Seen, facts.Ready, facts.Stages = report.Seen, report.Ready, report.Stages
		body.Startup, body.Goes = waterfall.Brief(report.Until(now).Sub(report.Seen)), report.Ready.IsZero() && !podsync.Terminal(&pod.Status)
		body.Covered = fmt.Sprintf("%.0f %%", 100*report.Covered(now))
		body.Waterfall = drawStages(report.Stages, report.Seen, report.Until(now))
	}
	body.Why = why.Sentence(facts, now)
	body.Events = eventRows(facts.Events, now)
	if !r.URL.Query().Has("live") {
		text, err := yaml.Marshal(object)
		if err != nil {
			return err
		}
		body.YAML = string(text)
	}
	s.show(w, r, http.StatusOK, "pod", view{Title: pod.Name, Body: body})
	return nil
}

func factsOf(pod *v1.Pod) []fact {
	list := []fact{
		{"Address", pod.Status.PodIP}, {"QoS", string(pod.Status.QOSClass)}, {"Reason", pod.Status.Reason}, {"Message", pod.Status.Message},
		{"Source", strings.TrimSpace(pod.Annotations[manifest.AnnotationSource] + " " + pod.Annotations[manifest.AnnotationFile])},
		{"UID", string(pod.UID)},
	}
	for _, key := range slices.Sorted(maps.Keys(pod.Labels)) {
		list = append(list, fact{"Label", key + "=" + pod.Labels[key]})
	}
	return slices.DeleteFunc(list, func(f fact) bool { return f.Value == "" })
}

func containers(pod *v1.Pod, now time.Time) []containerRow {
	var list []containerRow
	add := func(kind, name, image string, resources v1.ResourceRequirements, statuses []v1.ContainerStatus) {
		row := containerRow{Kind: kind, Name: name, Image: image, Resources: table.Resources(resources), State: "not there yet", Class: "wait"}
		if c := podsync.StatusOf(name, statuses); c != nil {
			row.State, row.Class = stateWords(c.State, now)
			row.Last, _ = stateWords(c.LastTerminationState, now)
			row.Ready, row.Restarts, row.Runs, row.HasRun = c.Ready, c.RestartCount, c.State.Running != nil, c.ContainerID != ""
		}
		list = append(list, row)
	}
	for _, c := range pod.Spec.InitContainers {
		kind := "init"
		if podsync.IsSidecar(&c) {
			kind = "sidecar"
		}
		add(kind, c.Name, c.Image, c.Resources, pod.Status.InitContainerStatuses)
	}
	for _, c := range pod.Spec.Containers {
		add("", c.Name, c.Image, c.Resources, pod.Status.ContainerStatuses)
	}
	for _, c := range pod.Spec.EphemeralContainers {
		add("debug", c.Name, c.Image, c.Resources, pod.Status.EphemeralContainerStatuses)
	}
	return list
}

func stateWords(s v1.ContainerState, now time.Time) (text, class string) {
	switch {
	case s.Running != nil:
		return "running for " + age(s.Running.StartedAt.Time, now), "ok"
	case s.Waiting != nil:
		if class = "wait"; trouble.MatchString(s.Waiting.Reason) {
			class = "bad"
		}
		return strings.TrimSuffix(s.Waiting.Reason+": "+s.Waiting.Message, ": "), class
	case s.Terminated != nil:
		t := s.Terminated
		text, class = fmt.Sprintf("ended with code %d, %s ago", t.ExitCode, age(t.FinishedAt.Time, now)), "done"
		if t.ExitCode != 0 {
			text, class = text+" ("+cmp.Or(t.Reason, "Error")+")", "bad"
		}
		if t.Message != "" {
			text += ": " + t.Message
		}
	}
	return text, class
}

// eventRows returns rows for the newest maxEvents events, the newest first.
func eventRows(events []v1.Event, now time.Time) []eventRow {
	slices.SortStableFunc(events, func(a, b v1.Event) int { return b.LastTimestamp.Compare(a.LastTimestamp.Time) })
	var list []eventRow
	for _, e := range events[:min(len(events), maxEvents)] {
		row := eventRow{Age: age(e.LastTimestamp.Time, now), Reason: e.Reason, Message: e.Message, Count: e.Count, Class: "ok"}
		if e.Type == v1.EventTypeWarning {
			row.Class = "bad"
		}
		if _, of, ok := strings.Cut(e.InvolvedObject.FieldPath, "{"); ok {
			row.Container = strings.TrimSuffix(of, "}")
		}
		list = append(list, row)
	}
	return list
}
