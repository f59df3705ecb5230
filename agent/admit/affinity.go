package admit

import (
	"slices"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// affinity checks nodeSelector and the required node affinity.
func affinity(pod *v1.Pod, n *Node) *podsync.Verdict {
	fits := labels.SelectorFromSet(pod.Spec.NodeSelector).Matches(labels.Set(n.Labels))
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		terms := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
		fits = fits && slices.ContainsFunc(terms, func(t v1.NodeSelectorTerm) bool { return selects(t, n) })
	}
	if fits {
		return nil
	}
	return reject("NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector")
}

// selects reports whether a term selects the node. An empty term selects nothing.
func selects(t v1.NodeSelectorTerm, n *Node) bool {
	if len(t.MatchExpressions)+len(t.MatchFields) == 0 {
		return false
	}
	for _, e := range t.MatchExpressions {
		if !labelsMatch(e, n.Labels) {
			return false
		}
	}
	for _, e := range t.MatchFields {
		if e.Key != "metadata.name" || !labelsMatch(e, map[string]string{e.Key: n.Name}) {
			return false
		}
	}
	return true
}

var operators = map[v1.NodeSelectorOperator]selection.Operator{
	v1.NodeSelectorOpIn: selection.In, v1.NodeSelectorOpNotIn: selection.NotIn, v1.NodeSelectorOpExists: selection.Exists,
	v1.NodeSelectorOpDoesNotExist: selection.DoesNotExist, v1.NodeSelectorOpGt: selection.GreaterThan, v1.NodeSelectorOpLt: selection.LessThan,
}

// labelsMatch reports whether labels satisfy an expression; an invalid one is never satisfied.
func labelsMatch(e v1.NodeSelectorRequirement, of map[string]string) bool {
	r, err := labels.NewRequirement(e.Key, operators[e.Operator], e.Values)
	return err == nil && r.Matches(labels.Set(of))
}
