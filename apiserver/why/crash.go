package why

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/internal/waterfall"
)

// recent is for how long a restart is the most important thing about a pod that is ready again.
const recent = 10 * time.Minute

// maxWords bounds the last line of a container's log in a sentence, in bytes.
const maxWords = 200

// signals are those that end programs.
var signals = map[int32]string{1: "HUP", 2: "INT", 3: "QUIT", 4: "ILL", 6: "ABRT", 7: "BUS", 8: "FPE", 9: "KILL", 11: "SEGV", 13: "PIPE", 15: "TERM", 31: "SYS"}

// crashed returns the container whose end best explains the state of the pod, and how it ended: one
// that waits for its next try, or else the one that ended last.
func (f Facts) crashed(now time.Time) (c *v1.ContainerStatus, t *v1.ContainerStateTerminated) {
	for _, s := range slices.Concat(f.Pod.Status.InitContainerStatuses, f.Pod.Status.ContainerStatuses) {
		end := s.LastTerminationState.Terminated
		waits := s.State.Waiting != nil && s.State.Waiting.Reason == "CrashLoopBackOff"
		if end == nil || !waits && now.Sub(end.FinishedAt.Time) > recent {
			continue
		}
		if c == nil || waits && c.State.Waiting == nil || waits == (c.State.Waiting != nil) && end.FinishedAt.After(t.FinishedAt.Time) {
			c, t = &s, end
		}
	}
	return c, t
}

// crash says how a container ended, how often, when the next try is, and what it wrote last.
func (f Facts) crash(c *v1.ContainerStatus, t *v1.ContainerStateTerminated, now time.Time) string {
	text := "container " + c.Name + " " + f.ending(c.Name, t)
	if !t.FinishedAt.IsZero() {
		text += " " + waterfall.Brief(now.Sub(t.FinishedAt.Time)) + " ago"
	}
	if c.RestartCount > 0 {
		times := int(c.RestartCount)
		if c.State.Running == nil {
			times++ // RestartCount does not have the first run
		}
		text += fmt.Sprintf(", run %d", times)
	}
	if w := c.State.Waiting; w != nil {
		if next, ok := nextTry(w.Message, t.FinishedAt.Time); ok && next.After(now) {
			text += "; next try in " + waterfall.Brief(next.Sub(now))
		}
	}
	return text + f.words(c.Name, t)
}

// ending says how a container ended: by the OOM killer with its limit, by a signal, or by itself.
func (f Facts) ending(name string, t *v1.ContainerStateTerminated) string {
	switch {
	case t.Reason == "OOMKilled":
		text := "was killed, as it ran out of memory"
		if spec := podsync.ContainerOf(&f.Pod.Spec, name); spec != nil && !spec.Resources.Limits.Memory().IsZero() {
			text += " (limit " + spec.Resources.Limits.Memory().String() + ")"
		}
		return text
	case t.Reason == "StartError" || t.Reason == "ContainerCannotRun":
		return "could not be started"
	case t.ExitCode > 128:
		if name, ok := signals[t.ExitCode-128]; ok {
			return fmt.Sprintf("ended with code %d (SIG%s)", t.ExitCode, name)
		}
	}
	return fmt.Sprintf("ended with code %d (%s)", t.ExitCode, cmp.Or(t.Reason, "no reason"))
}

// words are what the container said last: its termination message, or the last line of its log.
func (f Facts) words(name string, t *v1.ContainerStateTerminated) string {
	text, what := strings.TrimSpace(t.Message), ""
	if text == "" && f.Logs != nil {
		text, what = strings.TrimSpace(f.Logs.LastLine(name)), "last line: "
	}
	text = text[strings.LastIndexByte(text, '\n')+1:]
	if text == "" {
		return ""
	}
	if len(text) > maxWords {
		text = strings.ToValidUTF8(text[:maxWords], "") + "…"
	}
	return "; " + what + text
}

// backOff matches the kubelet's words for a container that waits for its next try.
var backOff = regexp.MustCompile(`^back-off (\S+) restarting `)

// nextTry returns when a container that ended at a moment is started again, from the message of its
// waiting state.
func nextTry(message string, ended time.Time) (time.Time, bool) {
	m := backOff.FindStringSubmatch(message)
	if m == nil || ended.IsZero() {
		return time.Time{}, false
	}
	wait, err := time.ParseDuration(m[1])
	return ended.Add(wait), err == nil
}
