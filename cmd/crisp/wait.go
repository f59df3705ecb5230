package main

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/status"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/jsonpath"
	"k8s.io/utils/ptr"
)

// waitStep is the polling interval of waits.
const waitStep = 100 * time.Millisecond

// until polls until yes returns true. If the timeout passes first, the error begins with what; a
// negative timeout never passes.
func (c *cli) until(timeout time.Duration, what string, yes func() (bool, error)) error {
	return c.untilSays(timeout, what, func() (bool, string, error) {
		ok, err := yes()
		return ok, "", err
	})
}

// untilSays is until with an error that ends with the last word from yes, the state of things.
func (c *cli) untilSays(timeout time.Duration, what string, yes func() (ok bool, word string, err error)) error {
	for deadline := time.Now().Add(timeout); ; {
		ok, word, err := yes()
		if ok || err != nil {
			return err
		}
		if timeout >= 0 && time.Now().After(deadline) {
			text := what + ": not so after " + timeout.Round(time.Millisecond).String() + ": " + word
			return &exitError{exitTimeout, strings.TrimSuffix(text, ": ")}
		}
		select {
		case <-c.ctx.Done():
			return c.ctx.Err()
		case <-time.After(waitStep):
		}
	}
}

// left returns the rest of a timeout that started at begin; a negative one stays as it is.
func left(timeout time.Duration, begin time.Time) time.Duration {
	if timeout < 0 {
		return timeout
	}
	return max(timeout-time.Since(begin), 0)
}

// untilPod is until for a pod. It returns the pod as yes saw it last.
func (c *cli) untilPod(namespace, name string, timeout time.Duration, what string, yes func(*v1.Pod) (bool, error)) (pod *v1.Pod, err error) {
	err = c.until(timeout, what, func() (bool, error) {
		pod = &v1.Pod{}
		if err := c.fetch(pathOf(podKind, namespace, name), nil, pod); err != nil {
			return false, err
		}
		return yes(pod)
	})
	return pod, err
}

func ready(pod *v1.Pod) bool {
	_, ok := podsync.Ready(&pod.Status)
	return ok
}

// waitReady waits until the pods of the objects are ready or have completed.
func (c *cli) waitReady(objects []object, timeout time.Duration) error {
	begin := time.Now()
	for _, t := range objects {
		if rank(t.kind) == 0 {
			continue
		}
		if err := c.untilSays(left(timeout, begin), t.String()+" is not ready", func() (bool, string, error) { return c.settled(t) }); err != nil {
			return err
		}
	}
	return nil
}

// settled reports whether a pod or a workload has reached its goal; if not, word describes its
// state.
func (c *cli) settled(t object) (ok bool, word string, err error) {
	switch t.kind.Name {
	case "Deployment", "StatefulSet", "DaemonSet":
		word, err := c.progress(t, true)
		return word == "" && err == nil, word, err
	case "Job":
		var j batchv1.Job
		if err := c.fetch(t.path(), nil, &j); err != nil {
			return false, "", err
		}
		return settledJob(&j)
	}
	var pod v1.Pod
	if err := c.fetch(t.path(), nil, &pod); err != nil {
		return false, "", err
	}
	word = status.Word(&pod)
	switch pod.Status.Phase {
	case v1.PodFailed:
		return false, "", fmt.Errorf("%s failed: %s", t, word)
	case v1.PodSucceeded:
		return true, "", nil
	}
	return ready(&pod), word, nil
}

// settledJob is settled for a Job. A suspended Job has not failed.
func settledJob(j *batchv1.Job) (ok bool, word string, err error) {
	for _, c := range j.Status.Conditions {
		switch {
		case c.Status != v1.ConditionTrue:
		case c.Type == batchv1.JobComplete:
			return true, "", nil
		case c.Type == batchv1.JobFailed:
			return false, "", fmt.Errorf("job %s failed: %v", j.Name, c.Reason)
		default:
			word = string(c.Type)
		}
	}
	return false, word, nil
}

func waitCommand(c *cli) *cobra.Command {
	var s selection
	var condition string
	var every bool
	var timeout time.Duration
	cmd := &cobra.Command{Use: "wait POD|TYPE/NAME... | TYPE -l SELECTOR|--all --for=Ready|delete|phase=PHASE|jsonpath=… [--timeout 30s]", Short: "wait for a condition of objects", ValidArgsFunction: c.completeNamed}
	fs := cmd.Flags()
	s.flags(fs)
	fs.BoolVar(&every, "all", false, "all objects of the named kinds")
	fs.StringVar(&condition, "for", "Ready", "`what` to wait for: Ready or any other condition (which an object may never have), phase=PHASE, jsonpath={PATH}=VALUE, delete")
	fs.DurationVar(&timeout, "timeout", 30*time.Second, "how long to wait; negative means forever")
	return runs(cmd, func(rest []string) error {
		what, err := c.choose(rest, s, every, "wait takes the pods to wait for")
		if err != nil {
			return err
		}
		if len(what) == 0 {
			return fault.NotFound.Errorf("there is nothing to wait for")
		}
		begin := time.Now()
		for _, t := range what {
			if err := c.until(left(timeout, begin), fmt.Sprintf("%s: %s", t, condition), func() (bool, error) { return c.is(t, condition) }); err != nil {
				return err
			}
			fmt.Fprintf(c.stdout, "%s: %s\n", t, condition)
		}
		return nil
	})
}

// is reports whether the condition is true for the object.
func (c *cli) is(t object, condition string) (bool, error) {
	var o unstructured.Unstructured
	err := c.fetch(t.path(), nil, &o)
	if errors.Is(err, fault.NotFound) {
		return condition == "delete", nil
	}
	if err != nil || condition == "delete" {
		return false, err // not yet
	}
	if phase, ok := strings.CutPrefix(condition, "phase="); ok {
		got, _, _ := unstructured.NestedString(o.Object, "status", "phase")
		return got == phase, nil
	}
	if text, ok := strings.CutPrefix(condition, "jsonpath="); ok {
		return valueIs(o.Object, text)
	}
	kind, want, ok := strings.Cut(strings.TrimPrefix(condition, "condition="), "=")
	if !ok {
		want = string(v1.ConditionTrue)
	}
	conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, item := range conditions {
		m, _ := item.(map[string]any)
		if name, _ := m["type"].(string); strings.EqualFold(name, kind) {
			st, _ := m["status"].(string)
			return strings.EqualFold(st, want), nil
		}
	}
	return false, nil
}

// valueIs parses and evaluates "{.status.phase}=Running", or "{.status.podIP}" for any value.
func valueIs(o map[string]any, text string) (bool, error) {
	path, want, valued := strings.Cut(text, "}=")
	if valued {
		path += "}"
	}
	p := jsonpath.New("wait").AllowMissingKeys(true)
	if err := p.Parse(path); err != nil {
		return false, usageError("--for jsonpath: %v", err)
	}
	var got strings.Builder
	if err := p.Execute(&got, o); err != nil {
		return false, usageError("--for jsonpath: %v", err)
	}
	return valued && got.String() == want || !valued && got.String() != "", nil
}

// rolloutActs has the subcommands of rollout.
var rolloutActs = []string{"status", "restart"}

// rolloutOptions has the flags of rollout.
type rolloutOptions struct {
	selection
	timeout time.Duration
	watch   bool
}

// rolloutCommand shows and triggers updates of workloads. kubectl pauses and resumes them.
func rolloutCommand(c *cli) *cobra.Command {
	var o rolloutOptions
	cmd := &cobra.Command{Use: "rollout status|restart deploy/NAME|ds/NAME... | TYPE -l SELECTOR", Short: "follow a workload's update, or restart its pods", ValidArgsFunction: completeActs(rolloutActs, c.completeObjects)}
	fs := cmd.Flags()
	o.oneFlags(fs)
	fs.DurationVar(&o.timeout, "timeout", 10*time.Minute, "for status: how long to wait")
	fs.BoolVarP(&o.watch, "watch", "w", true, "for status: wait until the update is done")
	return runs(cmd, func(rest []string) error {
		if len(rest) == 0 || !slices.Contains(rolloutActs, rest[0]) {
			return usageError("rollout takes status or restart, and a workload")
		}
		what, err := c.choose(rest[1:], o.selection, false, "rollout "+rest[0]+" takes a workload: deploy/NAME")
		if err != nil {
			return err
		}
		for _, t := range what {
			switch {
			case !slices.Contains([]string{"Deployment", "StatefulSet", "DaemonSet"}, t.kind.Name):
				err = usageError("%s: only Deployments, StatefulSets and DaemonSets are rolled out", t)
			case rest[0] == "status":
				err = c.rolloutStatus(t, o)
			default:
				err = c.rolloutRestart(t)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// rolloutRestart changes a workload's template, so that its pods are replaced.
func (c *cli) rolloutRestart(t object) error {
	var o unstructured.Unstructured
	if err := c.fetch(t.path(), nil, &o); err != nil {
		return err
	}
	if paused, _, _ := unstructured.NestedBool(o.Object, "spec", "paused"); paused {
		return fault.WrongState.Errorf("%s is paused and cannot be restarted: kubectl rollout resume %s", t, t)
	}
	now := map[string]string{"kubectl.kubernetes.io/restartedAt": time.Now().Format(time.RFC3339)}
	patch := map[string]any{"spec": map[string]any{"template": map[string]any{"metadata": map[string]any{"annotations": now}}}}
	if _, err := c.send(http.MethodPatch, t.path(), nil, patch, nil); err != nil {
		return fmt.Errorf("%s: %w", t, err)
	}
	_, err := fmt.Fprintln(c.stdout, t, "restarted")
	return err
}

// rolloutStatus prints the progress of an update whenever it changes.
func (c *cli) rolloutStatus(t object, o rolloutOptions) error {
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

// progress returns what remains of an update, and what its first pod lacks that is not ready; "" if it is complete.
// With pauses, a paused Deployment with all its pods counts as complete, whatever their template.
func (c *cli) progress(t object, pauses bool) (word string, err error) {
	if t.kind.Name == "DaemonSet" {
		var d appsv1.DaemonSet
		err = c.fetch(t.path(), nil, &d)
		if d.Status.UpdatedNumberScheduled < 1 || d.Status.NumberAvailable < 1 {
			word = "its pod is not available yet"
		}
	} else {
		var d appsv1.Deployment // a StatefulSet has the same counters
		err = c.fetch(t.path(), nil, &d)
		if d.Spec.Paused && pauses {
			d.Status.UpdatedReplicas = d.Status.Replicas
		}
		word = updateOf(&d)
		if d.Spec.Paused && !pauses && word != "" {
			word = "it is paused: " + word
		}
	}
	if err != nil || word == "" {
		return "", err
	}
	pods, _ := c.selected([]string{t.String()}, selection{namespace: t.namespace}) // it may have none
	if i := slices.IndexFunc(pods, func(f criruntime.Found) bool { return f.Pod.DeletionTimestamp == nil && !ready(f.Pod) }); i >= 0 {
		word += ": " + pods[i].Pod.Name + ": " + status.Word(pods[i].Pod)
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
