package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/status"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/jsonpath"
)

// waitStep is how often a wait looks.
const waitStep = 100 * time.Millisecond

// until waits for yes; what is printed if it does not come in time.
func (c *cli) until(timeout time.Duration, what string, yes func() (bool, error)) error {
	for deadline := time.Now().Add(timeout); ; {
		ok, err := yes()
		if ok || err != nil {
			return err
		}
		if timeout >= 0 && time.Now().After(deadline) {
			return &exitError{exitTimeout, what + ": not so after " + timeout.String()}
		}
		select {
		case <-c.ctx.Done():
			return c.ctx.Err()
		case <-time.After(waitStep):
		}
	}
}

func ready(pod *v1.Pod) bool {
	for _, cond := range pod.Status.Conditions {
		if cond.Type == v1.PodReady {
			return cond.Status == v1.ConditionTrue
		}
	}
	return false
}

// waitReady waits until the pods of the objects are ready, or have done what they
// were to do.
func (c *cli) waitReady(objects []given, timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	for _, g := range objects {
		if rank(g.kind) == 0 {
			continue
		}
		why := ""
		err := c.until(time.Until(deadline), g.String()+" is not ready", func() (bool, error) {
			ok, word, err := c.settled(g)
			why = word
			return ok, err
		})
		if e, timeout := errors.AsType[*exitError](err); timeout && e.code == exitTimeout && why != "" {
			e.text += ": " + why
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// settled reports whether a pod or a workload is where it is to be; if not, word
// says where it is.
func (c *cli) settled(g given) (ok bool, word string, err error) {
	var o unstructured.Unstructured
	if err := c.fetch(pathOf(g.kind, g.namespace, g.name), nil, &o); err != nil {
		return false, "", err
	}
	number := func(path ...string) int64 {
		n, _, _ := unstructured.NestedInt64(o.Object, path...)
		return n
	}
	switch g.kind.Name {
	case "Deployment":
		updated := number("status", "updatedReplicas")
		if paused, _, _ := unstructured.NestedBool(o.Object, "spec", "paused"); paused {
			updated = number("status", "replicas") // whatever its pods are of, no other is to come
		}
		return updated >= number("spec", "replicas") && number("status", "replicas") == updated && number("status", "availableReplicas") >= updated, "", nil
	case "DaemonSet":
		return number("status", "numberAvailable") >= 1 && number("status", "updatedNumberScheduled") >= 1, "", nil
	case "Job":
		conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
		if len(conditions) == 0 {
			return false, "", nil
		}
		last, _ := conditions[0].(map[string]any)
		if last["type"] != "Complete" {
			return false, "", fmt.Errorf("%s failed: %v", g, last["reason"])
		}
		return true, "", nil
	}
	var pod v1.Pod
	if err := c.fetch(pathOf(g.kind, g.namespace, g.name), nil, &pod); err != nil {
		return false, "", err
	}
	switch pod.Status.Phase {
	case v1.PodFailed:
		return false, "", fmt.Errorf("%s failed: %s", g, status.Word(&pod))
	case v1.PodSucceeded:
		return true, "", nil
	}
	return ready(&pod), status.Word(&pod), nil
}

func waitCommand(c *cli) *cobra.Command {
	var s scope
	var condition string
	var every bool
	var timeout time.Duration
	cmd := &cobra.Command{Use: "wait POD|TYPE/NAME... | TYPE -l SELECTOR|--all --for=Ready|delete|phase=PHASE|jsonpath=… [--timeout 30s]", Short: "wait for a condition of objects", ValidArgsFunction: c.completeNamed}
	fs := cmd.Flags()
	s.flags(fs)
	fs.BoolVar(&every, "all", false, "all objects of the kinds that are named")
	fs.StringVar(&condition, "for", "Ready", "`what` to wait for: Ready or another condition, phase=PHASE, jsonpath={PATH}=VALUE, delete")
	fs.DurationVar(&timeout, "timeout", 30*time.Second, "how long; less than 0 is for ever")
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
		what, err := c.choose(rest, s, every, "wait takes the pods to wait for")
		if err != nil {
			return err
		}
		if len(what) == 0 {
			return fault.NotFound.Errorf("there is nothing to wait for")
		}
		begin := time.Now()
		for _, t := range what {
			left := timeout
			if timeout >= 0 {
				left = max(timeout-time.Since(begin), 0)
			}
			if err := c.until(left, fmt.Sprintf("%s: %s", t, condition), func() (bool, error) { return c.is(t.target, t.namespace, condition) }); err != nil {
				return err
			}
			fmt.Fprintf(c.stdout, "%s: %s\n", t, condition)
		}
		return nil
	}
	return cmd
}

// is reports whether the condition holds for the object.
func (c *cli) is(t target, namespace, condition string) (bool, error) {
	var o unstructured.Unstructured
	err := c.fetch(pathOf(t.kind, namespace, t.name), nil, &o)
	if condition == "delete" {
		if errors.Is(err, fault.NotFound) {
			return true, nil
		}
		return false, err
	}
	if errors.Is(err, fault.NotFound) {
		return false, nil // not yet
	}
	if err != nil {
		return false, err
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

// valueIs reads "{.status.phase}=Running", or "{.status.podIP}" for any value.
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
