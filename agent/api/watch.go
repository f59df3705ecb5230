package api

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/internal/fault"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// watch writes a line for each change until the client leaves or its
// timeoutSeconds are over. Without a resource version it begins with what is
// there; with sendInitialEvents it says where that ends.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, k Kind, sel selection) error {
	q := r.URL.Query()
	var seq uint64
	if text := q.Get("resourceVersion"); text != "" && text != "0" && !truth(q, "sendInitialEvents") {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return fault.Invalid.Errorf("resourceVersion: %v", err)
		}
		seq = n
	}
	ctx := r.Context()
	var timeout <-chan time.Time
	if seconds, err := strconv.Atoi(q.Get("timeoutSeconds")); err == nil && seconds > 0 {
		timeout = time.After(time.Duration(seconds) * time.Second)
	}
	sub := s.view.hub.Subscribe(64)
	defer sub.Close()
	fresh, tables := seq == 0, wantsTable(r)
	w.Header().Set("Content-Type", "application/json")
	out := json.NewEncoder(w)
	for first := true; ; first = false {
		changes, now, err := s.view.since(k.Name, seq)
		if err != nil && first && !fresh {
			return err
		}
		if err != nil {
			return nil // it fell behind: the client lists again
		}
		for _, c := range changes {
			kind := "MODIFIED"
			switch {
			case c.deleted && fresh && first:
				continue
			case c.deleted:
				kind = "DELETED"
			case c.came:
				kind = "ADDED"
			}
			if !sel.takes(c.object) {
				continue
			}
			var object any = c.object
			if tables {
				object = table(r, k, []manifest.Object{c.object}, c.object.GetResourceVersion())
			}
			if err := out.Encode(map[string]any{"type": kind, "object": object}); err != nil {
				return nil
			}
		}
		if first && truth(q, "sendInitialEvents") {
			if err := out.Encode(map[string]any{"type": "BOOKMARK", "object": initialEnd(k, now)}); err != nil {
				return nil
			}
		}
		seq = now
		http.NewResponseController(w).Flush()
		select {
		case <-ctx.Done():
			return nil
		case <-timeout:
			return nil
		case _, ok := <-sub.C():
			if !ok {
				return nil
			}
			// What comes at once is looked at once.
			time.Sleep(20 * time.Millisecond)
			for len(sub.C()) > 0 {
				<-sub.C()
			}
		}
	}
}

// initialEnd tells that all that was there has been sent.
func initialEnd(k Kind, seq uint64) *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: k.Group, Kind: k.Name}}
	o.ResourceVersion = strconv.FormatUint(seq, 10)
	o.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	return o
}
