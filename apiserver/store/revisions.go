package store

import (
	"encoding/json"
	"slices"

	"github.com/crisp-cri/crisp/internal/fault"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A Revision is a current or former pod template of a workload, for crisp rollout.
type Revision struct {
	Number   int64           `json:"revision"` // 1 for the first; a template that is used again gets a new number
	Created  metav1.Time     `json:"created"`
	Cause    string          `json:"cause,omitempty"` // the annotation kubernetes.io/change-cause
	Template json.RawMessage `json:"template"`        // as applied
}

// mostRevisions is the default of spec.revisionHistoryLimit, the number of old revisions to keep,
// as in Kubernetes; maxRevisions is its upper limit.
const (
	mostRevisions = 10
	maxRevisions  = 100
)

// templated has the fields of a workload that revisions depend on.
type templated struct {
	Kind     string
	Metadata struct{ Annotations map[string]string }
	Spec     struct {
		RevisionHistoryLimit *int
		Template             json.RawMessage
	}
}

// revise sets the record's revisions: those of old, which may be nil, and the record's template,
// unless it equals the last one. Only Deployments and DaemonSets have revisions.
func (r *record) revise(old *record) {
	var now templated
	if json.Unmarshal(r.Object, &now) != nil || now.Kind != "Deployment" && now.Kind != "DaemonSet" {
		return
	}
	var before []Revision
	if old != nil && old.Deleted == nil {
		before = old.Revisions
		var last templated
		if len(before) == 0 && json.Unmarshal(old.Object, &last) == nil { // an earlier release kept no revisions
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

// Revisions returns the revisions of a workload, the current one last; nil for another kind. The
// error is fault.NotFound if there is no such object.
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
