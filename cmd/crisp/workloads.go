package main

import (
	"cmp"
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/apiserver/workload"
	"github.com/crisp-cri/crisp/internal/fault"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// selected returns the pods that arguments such as "web", "pod/web" and "deploy/web" name, or all
// pods without arguments, if they match the selector.
func (c *cli) selected(args []string, s scope) ([]criruntime.Found, error) {
	selector, err := labels.Parse(s.selector)
	if err != nil {
		return nil, usageError("-l %s: %v", s.selector, err)
	}
	all, err := c.anyPods()
	if err != nil {
		return nil, err
	}
	fits := func(f criruntime.Found) bool {
		return s.has(f.Pod.Namespace) && selector.Matches(labels.Set(f.Pod.Labels))
	}
	if len(args) == 0 {
		return slices.DeleteFunc(all, func(f criruntime.Found) bool { return !fits(f) }), nil
	}
	named, err := targets(args, true)
	if err != nil {
		return nil, err
	}
	var list []criruntime.Found
	for _, t := range named {
		n := len(list)
		for _, f := range all {
			if fits(f) && t.covers(f.Pod) {
				list = append(list, f)
			}
		}
		if len(list) == n {
			return nil, t.missing(s.namespace)
		}
	}
	return list, nil
}

// covers reports whether a pod is the target, or belongs to the workload that is the target.
func (t target) covers(pod metav1.Object) bool {
	if t.kind.Name == "Pod" {
		return t.name == pod.GetName()
	}
	return pod.GetAnnotations()[workload.AnnotationWorkload] == t.kind.Singular+" "+pod.GetNamespace()+"/"+t.name
}

func (t target) missing(namespace string) error {
	if t.kind.Name == "Pod" {
		return fault.NotFound.Errorf("there is no pod %s in namespace %s", t.name, namespace)
	}
	return fault.NotFound.Errorf("there is no pod of %s in namespace %s", t, namespace)
}

// best orders pods by preference: of a workload's pods one that is ready, or at least running; of
// pods with the same name, while one replaces another, the younger.
func best(a, b criruntime.Found) int {
	rank := func(pod *v1.Pod) int {
		switch {
		case pod.DeletionTimestamp != nil:
			return 3
		case ready(pod):
			return 0
		case pod.Status.Phase == v1.PodRunning:
			return 1
		}
		return 2
	}
	if a.Pod.Name == b.Pod.Name {
		return b.Pod.CreationTimestamp.Compare(a.Pod.CreationTimestamp.Time)
	}
	return cmp.Or(cmp.Compare(rank(a.Pod), rank(b.Pod)), strings.Compare(a.Pod.Name, b.Pod.Name))
}
