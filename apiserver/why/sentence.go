package why

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/internal/pulls"
	"github.com/crisp-cri/crisp/internal/timeline"
	"github.com/crisp-cri/crisp/internal/waterfall"
)

// Facts is the known state of a pod.
type Facts struct {
	Pod    *v1.Pod
	Seen   time.Time        // when the agent first saw it; zero if unknown
	Ready  time.Time        // when it was first ready; zero if it was not or if unknown
	Stages []timeline.Stage // the agent's and the runtime's, joined
	Pull   *pulls.Pull      // the pull that it waits for, or nil
	Events []v1.Event       // those of the pod, oldest first
	Logs   Logs             // of its containers; nil if unknown
}

// Logs returns the last line that a container's last ended run wrote, "" if that is not known.
type Logs interface {
	LastLine(container string) string
}

// Sentence returns a sentence that says why the pod is not ready, and what helps, or, if it is ready,
// what took most of the time. It has no full stop and no line feed.
func Sentence(f Facts, now time.Time) string { return f.sentence(now) + f.updated(now) }

// updated tells of the last update of the pod's images, if it asks for them.
func (f Facts) updated(now time.Time) string {
	for _, c := range f.Pod.Status.Conditions {
		if c.Type == podsync.ImageUpdated {
			return "; " + waterfall.Brief(now.Sub(c.LastTransitionTime.Time)) + " ago " + oneLine(c.Message)
		}
	}
	return ""
}

func (f Facts) sentence(now time.Time) string {
	name, s := f.Pod.Namespace+"/"+f.Pod.Name, &f.Pod.Status
	_, ready := podsync.Ready(s)
	trouble := Trouble(f, now)
	switch {
	case f.Pod.DeletionTimestamp != nil:
		return name + " is terminating"
	case s.Phase == v1.PodFailed:
		return withCure(name + " has failed: " + trouble)
	case s.Phase == v1.PodSucceeded:
		return name + " has succeeded"
	case ready && trouble != "":
		return withCure(name + " is ready, but " + trouble)
	case ready:
		return oneLine(f.wasSlow(name))
	case trouble == "":
		return name + " is not ready, and nothing says why"
	}
	return withCure(name + " is not ready: " + trouble)
}

// Trouble returns why the pod has failed or is not ready, or that a container of a ready one has
// ended lately; "" if there is nothing to say.
func Trouble(f Facts, now time.Time) string { return oneLine(f.trouble(now)) }

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

func (f Facts) trouble(now time.Time) string {
	s := &f.Pod.Status
	if f.Pod.DeletionTimestamp != nil || s.Phase == v1.PodSucceeded {
		return ""
	}
	if s.Phase == v1.PodFailed {
		return f.failure()
	}
	c, end := f.crashed(now)
	_, ready := podsync.Ready(s)
	if c != nil && (ready || c.State.Waiting != nil) {
		return f.crash(c, end, now)
	}
	if ready {
		return ""
	}
	text := f.waits(now)
	if c != nil && text != "" {
		text += "; before, " + f.crash(c, end, now)
	}
	return text
}

// waits says what a pod that is not ready waits for.
func (f Facts) waits(now time.Time) string {
	if f.Pull != nil {
		return fmt.Sprintf("image %s is being pulled %s: %s", f.Pull.Image, cmp.Or(f.Pull.Source(), "from its registry"), f.Pull)
	}
	if st, ok := f.going(); ok {
		return f.during(st, now)
	}
	if waits := Waits(f.Pod, &f.Pod.Status, nil); len(waits) > 0 {
		w := waits[0]
		return f.during(timeline.Stage{Name: w.Name, Container: w.Container, Detail: w.Detail}, now)
	}
	if e := f.last("", v1.EventTypeWarning); e != nil {
		return e.Reason + ": " + e.Message
	}
	return ""
}

// failure says why a pod has failed.
func (f Facts) failure() string {
	s := &f.Pod.Status
	if s.Reason != "" {
		return strings.TrimSuffix(s.Reason+": "+s.Message, ": ")
	}
	for _, c := range slices.Concat(s.InitContainerStatuses, s.ContainerStatuses) {
		if t := c.State.Terminated; t != nil && t.ExitCode != 0 {
			return "container " + c.Name + " " + f.ending(c.Name, t) + f.words(c.Name, t)
		}
	}
	return "no container says why"
}

// going returns the stage in progress that best explains why the pod is not ready: the one with
// the greatest weight, and of these the one that began last.
func (f Facts) going() (timeline.Stage, bool) {
	var found *timeline.Stage
	for i := range f.Stages {
		s := &f.Stages[i]
		if !s.End.IsZero() {
			continue
		}
		if found == nil || weight(s) > weight(found) || weight(s) == weight(found) && s.Begin.After(found.Begin) {
			found = s
		}
	}
	if found == nil {
		return timeline.Stage{}, false
	}
	return *found, true
}

// weight ranks stages by how much they explain: work of the agent or the runtime most, then a
// back-off or a predecessor, then the containers' own work, and least the worker's waiting and
// observing.
func weight(s *timeline.Stage) int {
	switch s.Name {
	case Observe, Queue:
		return 0
	case Init, Startup, Readiness:
		return 1
	case BackOff, Predecessor:
		return 2
	}
	return 3
}

// words describe each stage while it is in progress; %s is the name of the container.
var words = map[string]string{
	Queue:                 "the agent has yet to start on it",
	Observe:               "the agent waits for the runtime to report what runs",
	"volumes":             "its volumes are being made",
	"sandbox":             "its sandbox is being made",
	"pull":                "the image of container %s is being pulled",
	"create":              "container %s is being created",
	"start":               "container %s is being started",
	"image":               "the image of container %s is being looked up",
	"postStart hook":      "the postStart hook of container %s has not ended",
	Predecessor:           "the pod that had its name before has not ended",
	Init:                  "init container %s has not ended",
	Startup:               "the startup probe of container %s has not succeeded",
	Readiness:             "the readiness probe of container %s has not succeeded",
	turn:                  "the image of container %s waits for its turn to be pulled",
	"runtime's readiness": "the runtime does not answer",
}

// turn is the stage of a pull that waits for other pulls.
const turn = "wait for a turn to pull"

// during describes a stage in progress.
func (f Facts) during(s timeline.Stage, now time.Time) string {
	detail := cmp.Or(s.Err, s.Detail)
	if s.Name == BackOff {
		text := cmp.Or(detail, "something has failed and will be retried")
		if s.Container != "" {
			text = "container " + s.Container + " waits: " + text
		}
		return text
	}
	text, known := words[s.Name]
	switch {
	case !known:
		text = "it is in the stage " + s.Label()
	case strings.Contains(text, "%s"):
		text = fmt.Sprintf(text, cmp.Or(s.Container, "?"))
	}
	if inner := waterfall.Deepest(s); inner.Name != s.Name {
		text += " (" + inWords(inner.Name) + ")"
	}
	if !s.Begin.IsZero() {
		text += ", for " + waterfall.Brief(now.Sub(s.Begin))
	}
	if s.Name == Startup || s.Name == Readiness {
		if e := f.last(s.Container, v1.EventTypeWarning); e != nil && e.Reason == "Unhealthy" {
			detail = e.Message
		}
	}
	if detail != "" {
		text += ": " + detail
	}
	return text
}

// inWords returns the name of a part of a stage for people.
func inWords(part string) string {
	if plugin, ok := strings.CutPrefix(part, "cni."); ok {
		return "CNI plugin " + plugin
	}
	return part
}

// last returns the newest event of this type about a container, or, if container is "", about
// the pod or any container; nil without one.
func (f Facts) last(container, kind string) *v1.Event {
	for i := range slices.Backward(f.Events) {
		e := &f.Events[i]
		if e.Type == kind && (container == "" || strings.HasSuffix(e.InvolvedObject.FieldPath, "{"+container+"}")) {
			return e
		}
	}
	return nil
}

// wasSlow says how long a ready pod took to become so, and what took longest.
func (f Facts) wasSlow(name string) string {
	if f.Seen.IsZero() || f.Ready.IsZero() {
		return name + " is ready"
	}
	text := fmt.Sprintf("%s is ready: it took %s", name, waterfall.Brief(f.Ready.Sub(f.Seen)))
	var slowest *timeline.Stage
	for i := range f.Stages {
		s := &f.Stages[i]
		if s.Begin.Before(f.Ready) && s.Name != timeline.FirstOutput && (slowest == nil || s.Took(f.Ready) > slowest.Took(f.Ready)) {
			slowest = s
		}
	}
	if slowest == nil || slowest.Took(f.Ready) <= 0 {
		return text
	}
	text += fmt.Sprintf(", most of it for %s (%s", slowest.Label(), waterfall.Brief(slowest.Took(f.Ready)))
	if inner := waterfall.Longest(*slowest, f.Ready); inner.Name != slowest.Name {
		text += ", of which " + inWords(inner.Name) + " took " + waterfall.Brief(inner.Took(f.Ready))
	}
	if slowest.Detail != "" {
		text += ": " + slowest.Detail
	}
	return text + ")"
}
