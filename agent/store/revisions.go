package store

import (
	"encoding/json"
	"slices"

	"github.com/crisp-cri/crisp/internal/fault"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A Revision is a pod template that a workload has or had, for crisp rollout.
type Revision struct {
	Number   int64           `json:"revision"` // 1 for the first; one that comes back gets the next
	Created  metav1.Time     `json:"created"`
	Cause    string          `json:"cause,omitempty"` // the annotation kubernetes.io/change-cause
	Template json.RawMessage `json:"template"`        // as it was given
}

// mostRevisions is how many old revisions are kept, as by Kubernetes, unless
// spec.revisionHistoryLimit says otherwise; never more than maxRevisions.
const (
	mostRevisions = 10
	maxRevisions  = 100
)

// templated is what of a workload concerns its revisions.
type templated struct {
	Kind     string
	Metadata struct{ Annotations map[string]string }
	Spec     struct {
		RevisionHistoryLimit *int
		Template             json.RawMessage
	}
}

// revise adds the record's template to the revisions of the record before it, unless it
// is the last of them.
func (r *record) revise(old *record) {
	var now templated
	if json.Unmarshal(r.Object, &now) != nil || now.Kind != "Deployment" && now.Kind != "DaemonSet" {
		return
	}
	var before []Revision
	if old != nil && old.Deleted == nil {
		before = old.Revisions
		var last templated
		if len(before) == 0 && json.Unmarshal(old.Object, &last) == nil { // of a release that kept none
			before = []Revision{{1, old.Created, last.Metadata.Annotations[changeCause], last.Spec.Template}}
		}
	}
	next := int64(1)
	if n := len(before); n > 0 {
		next = before[n-1].Number + 1
		if equalJSON(before[n-1].Template, now.Spec.Template) {
			r.Revisions = before
			return
		}
	}
	limit := mostRevisions
	if l := now.Spec.RevisionHistoryLimit; l != nil {
		limit = min(max(*l, 0), maxRevisions)
	}
	kept := slices.DeleteFunc(slices.Clone(before), func(v Revision) bool { return equalJSON(v.Template, now.Spec.Template) })
	kept = kept[max(len(kept)-limit, 0):]
	r.Revisions = append(kept, Revision{next, metav1.Now().Rfc3339Copy(), now.Metadata.Annotations[changeCause], now.Spec.Template})
}

const changeCause = "kubernetes.io/change-cause"

// Revisions returns the revisions of a workload, the present one last.
func (s *Store) Revisions(key string) ([]Revision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.records[key]
	if !ok {
		return nil, fault.NotFound.Errorf("there is no %s", key)
	}
	if len(r.Revisions) == 0 {
		next := *r
		next.revise(nil)
		return next.Revisions, nil
	}
	return r.Revisions, nil
}
