package manifest

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
)

func (v *validator) security(field string, s *v1.SecurityContext) {
	if ptr.Deref(s.AllowPrivilegeEscalation, true) {
		return
	}
	if ptr.Deref(s.Privileged, false) {
		v.report(field+".allowPrivilegeEscalation", "cannot be false for a privileged container")
	}
	// Kubernetes rejects only the name with the prefix here, and manifests rely on that.
	if s.Capabilities != nil && slices.Contains(s.Capabilities.Add, "CAP_SYS_ADMIN") {
		v.report(field+".allowPrivilegeEscalation", "cannot be false with the capability CAP_SYS_ADMIN")
	}
}

func (v *validator) seccomp(field string, p *v1.SeccompProfile) {
	local := p.LocalhostProfile != nil
	switch {
	case p.Type == "":
		v.report(field+".type", "is missing")
	case local != (p.Type == v1.SeccompProfileTypeLocalhost):
		v.report(field+".localhostProfile", "belongs to the type Localhost: set both or neither")
	case local && *p.LocalhostProfile == "":
		v.report(field+".localhostProfile", "is missing")
	case local && (path.IsAbs(*p.LocalhostProfile) || hasDotDot(*p.LocalhostProfile)):
		v.report(field+".localhostProfile", "%q must stay below the agent's seccomp directory", *p.LocalhostProfile)
	}
}

// longestProfile is the maximum length of an AppArmor profile's name in bytes: PATH_MAX without the
// final NUL.
const longestProfile = 4095

func (v *validator) appArmor(field string, p *v1.AppArmorProfile) {
	profile := ptr.Deref(p.LocalhostProfile, "")
	switch {
	case p.Type == "":
		v.report(field+".type", "is missing")
	case (p.LocalhostProfile != nil) != (p.Type == v1.AppArmorProfileTypeLocalhost):
		v.report(field+".localhostProfile", "belongs to the type Localhost: set both or neither")
	case p.LocalhostProfile == nil:
	case profile == "" || strings.TrimSpace(profile) != profile:
		v.report(field+".localhostProfile", "%q is not the name of a profile", profile)
	case len(profile) > longestProfile:
		v.report(field+".localhostProfile", "has more than %d characters", longestProfile)
	}
}

// sysctlName matches the names that sysctl(8) accepts, with either separator.
var sysctlName = regexp.MustCompile(`^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$`)

// podSecurity checks the sysctls of a pod. It reports duplicates: one of them would be lost.
func (v *validator) podSecurity(field string, s *v1.PodSecurityContext) {
	seen := map[string]bool{}
	for i, c := range s.Sysctls {
		at := field + index(".sysctls", i) + ".name"
		switch {
		case len(c.Name) > 253 || !sysctlName.MatchString(c.Name):
			v.report(at, "%q is not a sysctl", c.Name)
		case seen[c.Name]:
			v.report(at, "%s is set twice", c.Name)
		}
		seen[c.Name] = true
	}
}

func index(field string, i int) string { return field + "[" + strconv.Itoa(i) + "]" }

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
