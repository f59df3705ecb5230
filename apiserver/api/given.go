package api

import (
	"encoding/json"
	"net/http"

	"github.com/crisp-cri/crisp/agent/manifest"
)

// getGiven answers with an object as it was applied, without defaults and status, for clients that
// edit and put it. Its version is the one that other reads have.
func (s *Server) getGiven(w http.ResponseWriter, r *http.Request, k Kind) error {
	text, o, err := s.Given(r, k)
	if err != nil {
		return err
	}
	text, err = EditMetadata(text, func(m map[string]any) { m["resourceVersion"] = o.GetResourceVersion() })
	if err != nil {
		return err
	}
	return Write(w, http.StatusOK, json.RawMessage(text))
}

// Given returns the object of a request, which must belong to the API, and the applied text.
func (s *Server) Given(r *http.Request, k Kind) (json.RawMessage, manifest.Object, error) {
	o, err := s.Find(r, k)
	if err == nil {
		err = Changeable(o)
	}
	if err != nil {
		return nil, nil, err
	}
	text, err := s.o.Store.Given(Key(r, k))
	return text, o, err
}

// getRevisions answers with the revisions of a workload.
func (s *Server) getRevisions(w http.ResponseWriter, r *http.Request, k Kind) error {
	if _, _, err := s.Given(r, k); err != nil {
		return err
	}
	list, err := s.o.Store.Revisions(Key(r, k))
	if err != nil {
		return err
	}
	return Write(w, http.StatusOK, map[string]any{"items": list})
}
