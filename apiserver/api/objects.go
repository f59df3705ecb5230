package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/apiserver/store"
	"github.com/crisp-cri/crisp/apiserver/table"
	"github.com/crisp-cri/crisp/internal/fault"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/rand"
)

// maxBody is the maximum size of a request's body in bytes, more than any object needs.
const maxBody = 4 << 20

// OutcomeHeader has the outcome of a PUT: created, configured, replaced or unchanged.
const OutcomeHeader = "Crisp-Outcome"

func (s *Server) routeObjects() {
	for _, k := range Kinds {
		handle := func(pattern string, f Handler) { s.mux.Handle(pattern, s.ObjectHandler(k, f)) }
		all := k.Path() + "/" + k.Plural
		one := all
		if k.Namespaced {
			one = k.Path() + "/namespaces/{namespace}/" + k.Plural
			handle("GET "+one, func(w http.ResponseWriter, r *http.Request) error { return s.getList(w, r, k) })
		}
		handle("GET "+all, func(w http.ResponseWriter, r *http.Request) error { return s.getList(w, r, k) })
		handle("GET "+one+"/{name}", func(w http.ResponseWriter, r *http.Request) error { return s.getOne(w, r, k) })
		if !k.Writable {
			continue
		}
		handle("POST "+one, func(w http.ResponseWriter, r *http.Request) error {
			return s.putBody(w, r, k, store.PutOptions{Create: true})
		})
		handle("PUT "+one+"/{name}", func(w http.ResponseWriter, r *http.Request) error {
			return s.putBody(w, r, k, store.PutOptions{Update: !BoolParam(r.URL.Query(), "create")})
		})
		handle("DELETE "+one, func(w http.ResponseWriter, r *http.Request) error { return s.deleteAll(w, r, k) })
		handle("DELETE "+one+"/{name}", func(w http.ResponseWriter, r *http.Request) error { return s.delete(w, r, k) })
	}
}

// Key returns the manifest.Key of the object that a request names.
func Key(r *http.Request, k Kind) string {
	return keyOf(k, r.PathValue("namespace"), r.PathValue("name"))
}

// keyOf returns the manifest.Key of an object of a kind.
func keyOf(k Kind, namespace, name string) string {
	if k.Namespaced {
		name = namespace + "/" + name
	}
	return strings.ToLower(k.Name) + " " + name
}

// ObjectHandler is Handler for requests about objects of a kind. They wait until the agent has read
// its manifests, so that an agent that has just started does not answer with an empty list. They
// wait at most settleTime, since the manifests may be unreadable.
func (s *Server) ObjectHandler(k Kind, f Handler) http.Handler {
	return s.Handler(func(w http.ResponseWriter, r *http.Request) error {
		if k.Writable {
			s.settle(r.Context(), s.o.Wanted.Local)
		}
		return f(w, r)
	})
}

// Find returns the object that a request names. It is read-only.
func (s *Server) Find(r *http.Request, k Kind) (manifest.Object, error) {
	if o := s.cache.Get(k.Name, Key(r, k)); o != nil {
		return o, nil
	}
	if k.Name == "Namespace" { // every namespace exists
		return Namespace(r.PathValue("name")), nil
	}
	return nil, fault.NotFound.Errorf("there is no %s", Key(r, k))
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

func (s *Server) getOne(w http.ResponseWriter, r *http.Request, k Kind) error {
	o, err := s.Find(r, k)
	if err != nil {
		return err
	}
	return Show(w, k, http.StatusOK, o)
}

// A Representer is a ResponseWriter whose client wants objects in another format.
type Representer interface {
	Represent(k Kind, objects []manifest.Object, version string) any
}

// Show answers with one object in the format that the client wants.
func Show(w http.ResponseWriter, k Kind, code int, o manifest.Object) error {
	return Write(w, code, represent(w, k, o))
}

func represent(w http.ResponseWriter, k Kind, o manifest.Object) any {
	if f, ok := w.(Representer); ok {
		return f.Represent(k, []manifest.Object{o}, o.GetResourceVersion())
	}
	return o
}

// A selection selects objects of a list by the query of a request.
type selection struct {
	namespace string
	labels    labels.Selector
	fields    fields.Selector
}

func selectionOf(r *http.Request, k Kind) (selection, error) {
	sel := selection{namespace: r.PathValue("namespace")}
	var err error
	if sel.labels, err = labels.Parse(r.URL.Query().Get("labelSelector")); err != nil {
		return sel, fault.Invalid.Errorf("labelSelector: %v", err)
	}
	if sel.fields, err = fields.ParseSelector(r.URL.Query().Get("fieldSelector")); err != nil {
		return sel, fault.Invalid.Errorf("fieldSelector: %v", err)
	}
	has := fieldsOf(table.New(k.Name))
	for _, req := range sel.fields.Requirements() {
		if !has.Has(req.Field) {
			return sel, fault.Invalid.Errorf("fieldSelector: %s is not supported for a %s", req.Field, k.Name)
		}
	}
	return sel, nil
}

// fieldsOf returns the fields of an object that field selectors may use: those that Kubernetes has
// for its kind.
func fieldsOf(o manifest.Object) fields.Set {
	set := fields.Set{"metadata.name": o.GetName(), "metadata.namespace": o.GetNamespace()}
	switch o := o.(type) {
	case *v1.Pod:
		maps.Copy(set, fields.Set{
			"spec.nodeName": o.Spec.NodeName, "spec.restartPolicy": string(o.Spec.RestartPolicy), "spec.schedulerName": o.Spec.SchedulerName,
			"spec.serviceAccountName": o.Spec.ServiceAccountName, "spec.hostNetwork": strconv.FormatBool(o.Spec.HostNetwork),
			"status.phase": string(o.Status.Phase), "status.podIP": o.Status.PodIP, "status.nominatedNodeName": o.Status.NominatedNodeName,
		})
	case *v1.Event:
		on := o.InvolvedObject
		maps.Copy(set, fields.Set{
			"involvedObject.kind": on.Kind, "involvedObject.name": on.Name, "involvedObject.namespace": on.Namespace, "involvedObject.uid": string(on.UID),
			"involvedObject.apiVersion": on.APIVersion, "involvedObject.resourceVersion": on.ResourceVersion, "involvedObject.fieldPath": on.FieldPath,
			"reason": o.Reason, "type": o.Type, "source": cmp.Or(o.Source.Component, o.ReportingController), "reportingComponent": o.ReportingController,
		})
	case *v1.Node:
		set["spec.unschedulable"] = strconv.FormatBool(o.Spec.Unschedulable)
	case *v1.Namespace:
		set["status.phase"] = string(o.Status.Phase)
	case *v1.Secret:
		set["type"] = string(o.Type)
	case *batchv1.Job:
		set["status.successful"] = strconv.Itoa(int(o.Status.Succeeded))
	}
	return set
}

func (sel selection) takes(o manifest.Object) bool {
	return (sel.namespace == "" || o.GetNamespace() == sel.namespace) && sel.labels.Matches(labels.Set(o.GetLabels())) && sel.fields.Matches(fieldsOf(o))
}

func (s *Server) getList(w http.ResponseWriter, r *http.Request, k Kind) error {
	sel, err := selectionOf(r, k)
	if err != nil {
		return err
	}
	if BoolParam(r.URL.Query(), "watch") {
		return s.watch(w, r, k, sel)
	}
	objects, seq := s.cache.List(k.Name)
	items := []manifest.Object{}
	for _, o := range objects {
		if sel.takes(o) {
			items = append(items, o)
		}
	}
	version := strconv.FormatUint(seq, 10)
	if f, ok := w.(Representer); ok {
		return Write(w, http.StatusOK, f.Represent(k, items, version))
	}
	return Write(w, http.StatusOK, map[string]any{
		"apiVersion": k.Group, "kind": k.Name + "List",
		"metadata": map[string]string{"resourceVersion": version}, "items": items,
	})
}

// Body reads the body of a request, at most maxBody.
func Body(r *http.Request) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if err == nil && len(data) > maxBody {
		err = fault.Invalid.Errorf("the request has more than %d bytes", maxBody)
	}
	return data, err
}

// Decode decodes the JSON body of a request.
func Decode(r *http.Request, into any) error {
	data, err := Body(r)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fault.Invalid.Errorf("%v", err)
	}
	return nil
}

func (s *Server) putBody(w http.ResponseWriter, r *http.Request, k Kind, o store.PutOptions) error {
	data, err := Body(r)
	if err != nil {
		return err
	}
	return s.Put(w, r, k, data, o)
}

// Put stores an object and answers with it. Its kind, namespace and name must be those of the
// request.
func (s *Server) Put(w http.ResponseWriter, r *http.Request, k Kind, data []byte, o store.PutOptions) error {
	q := r.URL.Query()
	var err error
	if o.DryRun, err = dryRun(q["dryRun"]); err != nil {
		return err
	}
	switch q.Get("fieldValidation") {
	case "Ignore":
		o.Unknown = manifest.Ignore
	case "Warn":
		o.Unknown = manifest.Warn
	}
	text, head, err := named(r, k, data)
	if err != nil {
		return err
	}
	id := keyOf(k, head.Namespace, head.Name)
	base := s.o.Wanted.Object(id) // read before there, so that the store detects a change in between
	there := s.cache.Get(k.Name, id)
	version := ""
	if there != nil {
		if err := Changeable(there); err != nil {
			return err
		}
		if v := head.ResourceVersion; v != "" && v != there.GetResourceVersion() {
			return fault.WrongState.Errorf("%s has been changed: read it again", id)
		}
		if head.ResourceVersion != "" && base != nil {
			version = base.GetResourceVersion()
		}
	}
	// The version that clients see changes with the status, the store's does not.
	if text, err = EditMetadata(text, func(m map[string]any) { m["resourceVersion"] = version }); err != nil {
		return err
	}
	object, outcome, warnings, err := s.o.Store.Put(text, o)
	if err != nil {
		return err
	}
	for _, warning := range warnings {
		w.Header().Add("Warning", fmt.Sprintf("299 - %q", warning.Field+": "+warning.Text))
	}
	w.Header().Set(OutcomeHeader, string(outcome))
	code := http.StatusOK
	if outcome == store.Created {
		code = http.StatusCreated
	}
	if o.DryRun && there != nil {
		object = object.DeepCopyObject().(manifest.Object)
		object.SetResourceVersion(there.GetResourceVersion())
	}
	if !o.DryRun {
		object = s.taken(r.Context(), k, object)
	}
	return Show(w, k, code, object)
}

// dryRun reports whether a request must have no effect. Any value that Kubernetes does not have is
// an error, because the change would otherwise be made.
func dryRun(values []string) (bool, error) {
	for _, v := range values {
		if v != metav1.DryRunAll {
			return false, fault.Invalid.Errorf("dryRun: %q is not %s", v, metav1.DryRunAll)
		}
	}
	return len(values) > 0, nil
}

// named returns the object in the body of a request, and its head. It generates a name for
// metadata.generateName, and sets the namespace of the path if the object has none.
func named(r *http.Request, k Kind, data []byte) (text []byte, head metav1.PartialObjectMetadata, err error) {
	objects, err := manifest.Split("", data)
	if err != nil || len(objects) != 1 {
		return nil, head, fault.Invalid.Errorf("want one object: %v", err)
	}
	if err := json.Unmarshal(objects[0], &head); err != nil {
		return nil, head, fault.Invalid.Errorf("%v", err)
	}
	namespace, name := r.PathValue("namespace"), r.PathValue("name")
	text, err = EditMetadata(objects[0], func(m map[string]any) {
		if head.Name == "" && head.GenerateName != "" && name == "" {
			head.Name = head.GenerateName + rand.String(5)
			m["name"] = head.Name
			delete(m, "generateName")
		}
		if k.Namespaced && head.Namespace == "" {
			head.Namespace = namespace
			if namespace != "default" {
				m["namespace"] = namespace
			}
		}
	})
	if err == nil && (head.Kind != k.Name || head.Namespace != namespace || name != "" && head.Name != name) {
		err = fault.Invalid.Errorf("the object is %s %s/%s, the request for %s %s/%s", head.Kind, head.Namespace, head.Name, k.Name, namespace, name)
	}
	return text, head, err
}

// taken waits until the agent has loaded an object from the store, and returns it as clients see
// it.
func (s *Server) taken(ctx context.Context, k Kind, object manifest.Object) manifest.Object {
	id := manifest.Key(object)
	s.settle(ctx, func() bool {
		now := s.o.Wanted.Object(id)
		return now != nil && now.GetResourceVersion() == object.GetResourceVersion()
	})
	if now := s.cache.Get(k.Name, id); now != nil && now.GetUID() == object.GetUID() {
		return now
	}
	return object
}

// settleTime is how long to wait for the agent's loop.
const settleTime = 2 * time.Second

// settle waits until the agent's loop has processed a change, so that the client's next request
// sees it. The loop then pokes the cache.
func (s *Server) settle(ctx context.Context, done func() bool) {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	for {
		poked := s.cache.Poked()
		if done() {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-poked:
		}
	}
}

// EditMetadata edits the metadata of an object in JSON.
func EditMetadata(text []byte, edit func(map[string]any)) ([]byte, error) {
	var o map[string]json.RawMessage
	if err := json.Unmarshal(text, &o); err != nil {
		return nil, fault.Invalid.Errorf("%v", err)
	}
	var m map[string]any
	numbers := json.NewDecoder(bytes.NewReader(o["metadata"]))
	numbers.UseNumber() // a float64 cannot represent all integers
	if err := numbers.Decode(&m); err != nil || m == nil {
		return nil, fault.Invalid.Errorf("metadata: is missing")
	}
	edit(m)
	edited, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	o["metadata"] = edited
	return json.Marshal(o)
}
