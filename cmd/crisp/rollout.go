package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/crisp-cri/crisp/apiserver/store"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

// rolloutActs has the subcommands of rollout.
var rolloutActs = []string{"status", "restart", "undo", "history", "pause", "resume"}

// rolloutOptions has the flags of rollout.
type rolloutOptions struct {
	scope
	timeout  time.Duration
	watch    bool
	revision int64
}

// rolloutCommand shows, triggers and reverts updates of workloads.
func rolloutCommand(c *cli) *cobra.Command {
	var o rolloutOptions
	cmd := &cobra.Command{Use: "rollout status|restart|undo|history|pause|resume deploy/NAME|ds/NAME... | TYPE -l SELECTOR", Short: "follow a workload's update, restart its pods, roll back, or pause its rollout", ValidArgsFunction: completeActs(rolloutActs, c.completeObjects)}
	fs := cmd.Flags()
	o.oneFlags(fs)
	fs.DurationVar(&o.timeout, "timeout", 10*time.Minute, "for status: how long to wait")
	fs.BoolVarP(&o.watch, "watch", "w", true, "for status: wait until the update is done")
	fs.Int64Var(&o.revision, "to-revision", 0, "for undo: `number` of the revision; 0 is the previous one")
	fs.Int64Var(&o.revision, "revision", 0, "for history: show the template with this `number`")
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
		if len(rest) == 0 || !slices.Contains(rolloutActs, rest[0]) {
			return usageError("rollout takes status, restart, undo, history, pause or resume, and a workload")
		}
		what, err := c.choose(rest[1:], o.scope, false, "rollout "+rest[0]+" takes a workload: deploy/NAME")
		if err != nil {
			return err
		}
		for _, t := range what {
			if t.kind.Name != "Deployment" && t.kind.Name != "DaemonSet" {
				return usageError("%s: only Deployments and DaemonSets are rolled out", t)
			}
			if err := c.rollout(rest[0], t, o); err != nil {
				return err
			}
		}
		return nil
	}
	return cmd
}

func (c *cli) rollout(act string, t chosen, o rolloutOptions) error {
	switch act {
	case "status":
		return c.rolloutStatus(t, o)
	case "history":
		return c.rolloutHistory(t, o.revision)
	case "undo":
		return c.rolloutUndo(t, o.revision)
	case "pause", "resume":
		return c.rolloutPause(t, act == "pause")
	}
	if _, err := c.change(t, func(w map[string]any) error {
		if isPaused(w) {
			return pausedError(t, "restarted")
		}
		within(w, "spec", "template", "metadata", "annotations")["kubectl.kubernetes.io/restartedAt"] = time.Now().Format(time.RFC3339)
		return nil
	}); err != nil {
		return err
	}
	_, err := fmt.Fprintln(c.stdout, t, "restarted")
	return err
}

// rolloutStatus prints the progress of an update whenever it changes.
func (c *cli) rolloutStatus(t chosen, o rolloutOptions) error {
	last := ""
	return c.untilSays(o.timeout, t.String()+" is not rolled out", func() (bool, string, error) {
		word, err := c.progress(t, false)
		if err != nil {
			return false, "", err
		}
		if word == "" {
			_, err := fmt.Fprintln(c.stdout, t, "successfully rolled out")
			return true, "", err
		}
		if word != last {
			last = word
			fmt.Fprintf(c.stdout, "%s: %s\n", t, word)
		}
		return !o.watch, word, nil
	})
}

// progress returns what remains of an update, "" if it is complete. With pauses, a paused
// Deployment with all its pods counts as complete, whatever their template.
func (c *cli) progress(t chosen, pauses bool) (string, error) {
	if t.kind.Name == "DaemonSet" {
		var d appsv1.DaemonSet
		if err := c.fetch(t.path(), nil, &d); err != nil {
			return "", err
		}
		if d.Status.UpdatedNumberScheduled < 1 || d.Status.NumberAvailable < 1 {
			return "its pod is not available yet", nil
		}
		return "", nil
	}
	var d appsv1.Deployment
	if err := c.fetch(t.path(), nil, &d); err != nil {
		return "", err
	}
	if d.Spec.Paused && pauses {
		d.Status.UpdatedReplicas = d.Status.Replicas
	}
	word := updateOf(&d)
	if d.Spec.Paused && !pauses && word != "" {
		word = "it is paused: " + word
	}
	return word, nil
}

// updateOf returns what remains of a Deployment's update, "" if it is complete.
func updateOf(d *appsv1.Deployment) string {
	want, s := ptr.Deref(d.Spec.Replicas, 1), d.Status
	switch {
	case s.ObservedGeneration < d.Generation:
		return "the change has not been taken in yet"
	case s.UpdatedReplicas < want:
		return fmt.Sprintf("%d of %d new pods have begun", s.UpdatedReplicas, want)
	case s.Replicas > s.UpdatedReplicas:
		return fmt.Sprintf("%d old pods have yet to end", s.Replicas-s.UpdatedReplicas)
	case s.AvailableReplicas < s.UpdatedReplicas:
		return fmt.Sprintf("%d of %d new pods are available", s.AvailableReplicas, s.UpdatedReplicas)
	}
	return ""
}

func (c *cli) revisions(t chosen) ([]store.Revision, error) {
	var answer struct{ Items []store.Revision }
	err := c.fetch("/crisp/v1"+t.path()+"/revisions", nil, &answer)
	return answer.Items, err
}

// rolloutHistory lists the revisions of a workload, or prints the template of one.
func (c *cli) rolloutHistory(t chosen, number int64) error {
	list, err := c.revisions(t)
	if err != nil {
		return err
	}
	if number != 0 {
		r, err := revisionOf(t, list, number)
		if err != nil {
			return err
		}
		text, err := yaml.JSONToYAML(r.Template)
		if err != nil {
			return err
		}
		_, err = c.stdout.Write(text)
		return err
	}
	table := c.columns("REVISION", "CREATED", "CHANGE-CAUSE")
	for _, r := range list {
		row(table, false, "", []string{fmt.Sprint(r.Number), when(r.Created.Time), cmp.Or(r.Cause, "<none>")})
	}
	return table.Flush()
}

// revisionOf finds a revision by its number; 0 means the one before the last.
func revisionOf(t chosen, list []store.Revision, number int64) (store.Revision, error) {
	if number == 0 {
		if len(list) < 2 {
			return store.Revision{}, fault.NotFound.Errorf("%s has no revision before this one", t)
		}
		return list[len(list)-2], nil
	}
	i := slices.IndexFunc(list, func(r store.Revision) bool { return r.Number == number })
	if i < 0 {
		return store.Revision{}, fault.NotFound.Errorf("%s has no revision %d", t, number)
	}
	return list[i], nil
}

// rolloutUndo sets a workload's template to an earlier one.
func (c *cli) rolloutUndo(t chosen, number int64) error {
	list, err := c.revisions(t)
	if err != nil {
		return err
	}
	r, err := revisionOf(t, list, number)
	if err != nil {
		return err
	}
	var template map[string]any
	if err := json.Unmarshal(r.Template, &template); err != nil {
		return err
	}
	_, err = c.change(t, func(o map[string]any) error {
		if isPaused(o) {
			return pausedError(t, "rolled back")
		}
		within(o, "spec")["template"] = template
		if r.Cause != "" {
			within(o, "metadata", "annotations")["kubernetes.io/change-cause"] = r.Cause
		}
		return nil
	})
	if err == nil {
		_, err = fmt.Fprintf(c.stdout, "%s rolled back to revision %d\n", t, r.Number)
	}
	return err
}

// rolloutPause stops or resumes the rollout of template changes of a Deployment.
func (c *cli) rolloutPause(t chosen, pause bool) error {
	if t.kind.Name != "Deployment" {
		return usageError("%s: only Deployments are paused", t)
	}
	word := map[bool]string{true: "paused", false: "resumed"}[pause]
	if _, err := c.change(t, func(o map[string]any) error {
		switch is := isPaused(o); {
		case is && pause:
			return fault.WrongState.Errorf("%s is already paused", t)
		case !is && !pause:
			return fault.WrongState.Errorf("%s is not paused", t)
		case pause:
			within(o, "spec")["paused"] = true
		default:
			delete(within(o, "spec"), "paused")
		}
		return nil
	}); err != nil {
		return err
	}
	_, err := fmt.Fprintln(c.stdout, t, word)
	return err
}

func isPaused(o map[string]any) bool {
	paused, _, _ := unstructured.NestedBool(o, "spec", "paused")
	return paused
}

func pausedError(t chosen, how string) error {
	return fault.WrongState.Errorf("%s is paused and cannot be %s: crisp rollout resume %s", t, how, t)
}
