package api

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/internal/fault"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// delete deletes an object. DeleteOptions may be in the body or, as far as one
// needs them, in the query: gracePeriodSeconds, dryRun, propagationPolicy, force.
func (s *Server) delete(w http.ResponseWriter, r *http.Request, k Kind) error {
	data, err := Body(r)
	if err != nil {
		return err
	}
	var o metav1.DeleteOptions
	if len(data) > 0 {
		if err := json.Unmarshal(data, &o); err != nil {
			return fault.Invalid.Errorf("%v", err)
		}
	}
	q := r.URL.Query()
	if text := q.Get("gracePeriodSeconds"); text != "" {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return fault.Invalid.Errorf("gracePeriodSeconds %q: want a number of seconds", text)
		}
		o.GracePeriodSeconds = &seconds
	}
	dry, err := dryRun(slices.Concat(o.DryRun, q["dryRun"]))
	if err != nil {
		return err
	}
	p := ptr.Deref(o.Preconditions, metav1.Preconditions{})
	uid := ptr.Deref(p.UID, "")
	found, err := s.Find(r, k)
	if errors.Is(err, fault.NotFound) && s.o.Store.Rejected(Key(r, k)) {
		return s.deleteRejected(w, r, k, uid, dry)
	}
	if err == nil {
		err = Changeable(found)
	}
	if err != nil {
		return err
	}
	if p.ResourceVersion != nil && *p.ResourceVersion != found.GetResourceVersion() {
		return fault.WrongState.Errorf("%s has been changed: read it again", manifest.Key(found))
	}
	policy := cmp.Or(metav1.DeletionPropagation(q.Get("propagationPolicy")), ptr.Deref(o.PropagationPolicy, ""))
	//lint:ignore SA1019 older clients still send it
	if manifest.IsWorkload(found) && (policy == metav1.DeletePropagationOrphan || ptr.Deref(o.OrphanDependents, false)) {
		return fault.Invalid.Errorf("propagationPolicy Orphan: the pods of %s end with it", manifest.Key(found))
	}
	if dry {
		return Show(w, k, http.StatusOK, found)
	}
	object, err := s.o.Store.Delete(Key(r, k), uid, o.GracePeriodSeconds, BoolParam(q, "force"))
	if err != nil {
		return err
	}
	s.settle(r.Context(), func() bool {
		now := s.o.Wanted.Object(manifest.Key(object))
		// Only a pod remains for a while, in deletion.
		return now == nil || now.GetUID() != object.GetUID() || object.GetDeletionTimestamp() != nil && now.GetResourceVersion() == object.GetResourceVersion()
	})
	if now, err := s.Find(r, k); err == nil && now.GetUID() == object.GetUID() {
		object = now
	}
	return Show(w, k, http.StatusOK, object)
}

// deleteAll deletes the objects of a list, each as delete does. One that may not be deleted keeps
// none of the others.
func (s *Server) deleteAll(w http.ResponseWriter, r *http.Request, k Kind) error {
	sel, err := selectionOf(r, k)
	if err != nil {
		return err
	}
	data, err := Body(r)
	if err != nil {
		return err
	}
	objects, _ := s.cache.List(k.Name)
	var errs []error
	for _, o := range objects {
		if !sel.takes(o) {
			continue
		}
		if err := r.Context().Err(); err != nil {
			return err
		}
		one := r.Clone(r.Context())
		one.SetPathValue("name", o.GetName())
		one.Body = io.NopCloser(bytes.NewReader(data))
		if err := s.delete(unanswered{}, one, k); err != nil && !errors.Is(err, fault.NotFound) {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return Write(w, http.StatusOK, metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess})
}

// unanswered drops an answer.
type unanswered struct{}

func (unanswered) Header() http.Header            { return http.Header{} }
func (unanswered) Write(data []byte) (int, error) { return len(data), nil }
func (unanswered) WriteHeader(int)                {}

// deleteRejected deletes an object that no list has, because this agent rejects its text.
func (s *Server) deleteRejected(w http.ResponseWriter, r *http.Request, k Kind, uid types.UID, dry bool) error {
	if !dry {
		if _, err := s.o.Store.Delete(Key(r, k), uid, nil, true); err != nil {
			return err
		}
	}
	return Write(w, http.StatusOK, metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess,
		Details: &metav1.StatusDetails{Name: r.PathValue("name"), Kind: k.Plural},
	})
}
