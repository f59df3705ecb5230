package manifest

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// index returns the path of an element of a list.
func index(field string, i int) string { return field + "[" + strconv.Itoa(i) + "]" }

// keysAndValues checks the labels of a selector.
func (v *validator) keysAndValues(field string, labels map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		at := field + "[" + key + "]"
		v.valid(at, key, validation.IsQualifiedName(key))
		v.valid(at, labels[key], validation.IsValidLabelValue(labels[key]))
	}
}

// nodeTerms checks the required node affinity of a pod. No node would match a requirement that
// cannot be parsed.
func (v *validator) nodeTerms(field string, s *v1.NodeSelector) {
	if len(s.NodeSelectorTerms) == 0 {
		v.report(field+".nodeSelectorTerms", "is missing")
	}
	for i, term := range s.NodeSelectorTerms {
		at := index(field+".nodeSelectorTerms", i)
		for j := range term.MatchExpressions {
			v.nodeLabel(index(at+".matchExpressions", j), &term.MatchExpressions[j])
		}
		for j := range term.MatchFields {
			v.nodeField(index(at+".matchFields", j), &term.MatchFields[j])
		}
	}
}

// nodeLabel checks a requirement for a label of the node.
func (v *validator) nodeLabel(field string, r *v1.NodeSelectorRequirement) {
	values := len(r.Values)
	want := map[v1.NodeSelectorOperator]struct {
		right bool
		text  string
	}{
		v1.NodeSelectorOpIn:           {values > 0, "at least one value"},
		v1.NodeSelectorOpNotIn:        {values > 0, "at least one value"},
		v1.NodeSelectorOpExists:       {values == 0, "no values"},
		v1.NodeSelectorOpDoesNotExist: {values == 0, "no values"},
		v1.NodeSelectorOpGt:           {values == 1, "one value"},
		v1.NodeSelectorOpLt:           {values == 1, "one value"},
	}
	switch w, ok := want[r.Operator]; {
	case !ok:
		v.report(field+".operator", "%q: want %s", r.Operator, strings.Join(texts(slices.Sorted(maps.Keys(want))), ", "))
	case !w.right:
		v.report(field+".values", "%s wants %s", r.Operator, w.text)
	}
	v.valid(field+".key", r.Key, validation.IsQualifiedName(r.Key))
	for i, value := range r.Values {
		v.valid(index(field+".values", i), value, validation.IsValidLabelValue(value))
	}
}

// nodeField checks a requirement for a field of the node. The only valid field is its name.
func (v *validator) nodeField(field string, r *v1.NodeSelectorRequirement) {
	if r.Operator != v1.NodeSelectorOpIn && r.Operator != v1.NodeSelectorOpNotIn {
		v.report(field+".operator", "%q: want In, NotIn", r.Operator)
	}
	if len(r.Values) != 1 {
		v.report(field+".values", "want one value, got %d", len(r.Values))
	}
	if r.Key != "metadata.name" {
		v.report(field+".key", "%q: want metadata.name", r.Key)
	}
	for i, value := range r.Values {
		if v.node != "" && value == v.node {
			continue // any host name is accepted
		}
		v.valid(fmt.Sprintf("%s.values[%d]", field, i), value, validation.IsDNS1123Subdomain(value))
	}
}
