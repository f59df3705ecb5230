package kubectl

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"

	"github.com/crisp-cri/crisp/apiserver/api"
	"github.com/crisp-cri/crisp/apiserver/store"
	columns "github.com/crisp-cri/crisp/apiserver/table"
	"github.com/crisp-cri/crisp/internal/fault"
	jsonpatch "github.com/evanphx/json-patch/v5"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/yaml"
)

// routePatch routes patches of objects, and of the subresources of pods.
func (h *Handler) routePatch() {
	for _, k := range api.Kinds {
		if !k.Writable {
			continue
		}
		path := k.Path() + "/" + k.Plural + "/{name}"
		if k.Namespaced {
			path = k.Path() + "/namespaces/{namespace}/" + k.Plural + "/{name}"
		}
		handle := func(path string, f api.Handler) { h.mux.Handle("PATCH "+path, h.server.ObjectHandler(k, f)) }
		handle(path, func(w http.ResponseWriter, r *http.Request) error { return h.patch(w, r, k) })
		if k.Name == "Pod" {
			for _, part := range []string{"/resize", "/ephemeralcontainers"} {
				handle(path+part, func(w http.ResponseWriter, r *http.Request) error { return h.patchPart(w, r, k) })
			}
		}
	}
}

// patchPart patches a subresource of a pod: the server takes only its part of the patched pod.
func (h *Handler) patchPart(w http.ResponseWriter, r *http.Request, k api.Kind) error {
	patch, err := api.Body(r) // first, since the body may take long to arrive
	if err != nil {
		return err
	}
	found, err := h.server.Find(r, k)
	if err != nil {
		return err
	}
	now, err := json.Marshal(found)
	if err != nil {
		return err
	}
	patched, err := applyPatch(found, r.Header.Get("Content-Type"), now, patch)
	if err != nil {
		return err
	}
	h.server.ServeHTTP(w, withBody(r, http.MethodPut, "application/json", patched))
	return nil
}

// patch changes the applied text of an object: by a strategic or plain merge patch, by a JSON
// patch, or by server-side apply.
func (h *Handler) patch(w http.ResponseWriter, r *http.Request, k api.Kind) error {
	patch, err := api.Body(r)
	if err != nil {
		return err
	}
	kind := r.Header.Get("Content-Type")
	if types.PatchType(kind) == types.ApplyYAMLPatchType {
		return h.apply(w, r, k, patch)
	}
	given, found, err := h.server.Given(r, k)
	if err != nil {
		return err
	}
	// A patch may name the version to which it applies. Without one it applies to any.
	version := found.GetResourceVersion()
	versioned, err := api.EditMetadata(given, func(m map[string]any) { m["resourceVersion"] = version })
	if err != nil {
		return err
	}
	patched, err := applyPatch(columns.New(k.Name), kind, versioned, patch)
	if err != nil {
		return err
	}
	patched, err = api.EditMetadata(patched, func(m map[string]any) {
		if m["resourceVersion"] == version {
			delete(m, "resourceVersion")
		}
	})
	if err != nil {
		return err
	}
	return h.server.Put(w, r, k, patched, store.PutOptions{Update: true})
}

// apply implements server-side apply: it creates or updates an object. Fields that the same field
// manager applied before and now omits are removed; fields set by others stay. Fields have no
// owners, so there are no conflicts.
func (h *Handler) apply(w http.ResponseWriter, r *http.Request, k api.Kind, text []byte) error {
	next, err := yaml.YAMLToJSON(text)
	if err != nil {
		return fault.Invalid.Errorf("%v", err)
	}
	given, err := h.store.Given(api.Key(r, k))
	lasts := h.store.Applied(api.Key(r, k))
	o := store.PutOptions{Update: true}
	if errors.Is(err, fault.NotFound) {
		given, o, err = []byte(`{}`), store.PutOptions{Create: true}, nil
		if found, findErr := h.server.Find(r, k); findErr == nil { // from a file or a workload
			err = api.Changeable(found)
		}
	}
	if err != nil {
		return err
	}
	manager := r.URL.Query().Get("fieldManager")
	merged, last, err := threeWay(columns.New(k.Name), given, lasts[manager], next)
	if err != nil {
		return err
	}
	// The applied configuration may have a Secret's values. An annotation would show them.
	o.Applied = maps.Clone(lasts)
	if o.Applied == nil {
		o.Applied = map[string]json.RawMessage{}
	}
	o.Applied[manager] = last
	return h.server.Put(w, r, k, merged, o)
}

// threeWay merges next into the applied text of an object and removes fields of last, the previous
// configuration of the same manager, that next omits. like is an empty object of its kind. applied
// is the value of last for the next call.
func threeWay(like any, given, last, next []byte) (merged, applied []byte, err error) {
	var from map[string]any
	if err := json.Unmarshal(next, &from); err != nil {
		return nil, nil, fault.Invalid.Errorf("%v", err)
	}
	if m, ok := from["metadata"].(map[string]any); ok {
		for _, name := range []string{"managedFields", "resourceVersion", "uid", "creationTimestamp", "generation"} {
			delete(m, name)
		}
	}
	delete(from, "status")
	applied = mustMarshal(from)
	schema, err := strategicpatch.NewPatchMetaFromStruct(like)
	if err != nil {
		return nil, nil, err
	}
	merged, err = strategic(func() ([]byte, error) {
		patch, err := strategicpatch.CreateThreeWayMergePatch(last, applied, given, schema, true)
		if err != nil {
			return nil, err
		}
		return strategicpatch.StrategicMergePatchUsingLookupPatchMeta(given, patch, schema)
	})
	if err != nil {
		return nil, nil, fault.Invalid.Errorf("%v", err)
	}
	return merged, applied, nil
}

// strategic turns a panic into an error: package strategicpatch panics on some malformed patches,
// such as an object in $retainKeys.
func strategic(merge func() ([]byte, error)) (merged []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			merged, err = nil, fmt.Errorf("malformed patch: %v", p)
		}
	}()
	return merge()
}

// mustMarshal encodes a value that was decoded from JSON.
func mustMarshal(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return data
}

// copied is the API server's limit of the bytes that the copy operations of a JSON patch may add.
const copied = 3 << 20

// applyPatch applies a patch in the format that a Content-Type names. like is an empty object of
// its kind.
func applyPatch(like any, kind string, given, patch []byte) ([]byte, error) {
	var patched []byte
	var err error
	switch types.PatchType(kind) {
	case types.JSONPatchType:
		patched, err = jsonPatch(given, patch)
	case types.MergePatchType:
		patched, err = jsonpatch.MergePatch(given, patch)
	case types.StrategicMergePatchType:
		patched, err = strategic(func() ([]byte, error) { return strategicpatch.StrategicMergePatch(given, patch, like) })
		if err == nil {
			patched, err = withoutDirectives(patched)
		}
	default:
		return nil, fault.Invalid.Errorf("patches of the type %q are not supported: want %s, %s, %s or %s", kind,
			types.StrategicMergePatchType, types.MergePatchType, types.JSONPatchType, types.ApplyYAMLPatchType)
	}
	if err != nil {
		return nil, fault.Invalid.Errorf("%s: %v", kind, err)
	}
	return patched, nil
}

// directive matches the directives that package strategicpatch leaves in a map that the object did
// not have. kubectl sends them for what only the defaults have, which are not part of the object.
var directive = regexp.MustCompile(`^\$(retainKeys$|setElementOrder/|deleteFromPrimitiveList/)`)

func withoutDirectives(patched []byte) ([]byte, error) {
	var object any
	if err := utiljson.Unmarshal(patched, &object); err != nil { // keeps integers
		return nil, err
	}
	var drop func(any)
	drop = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			maps.DeleteFunc(v, func(key string, _ any) bool { return directive.MatchString(key) })
			for _, value := range v {
				drop(value)
			}
		case []any:
			for _, item := range v {
				drop(item)
			}
		}
	}
	drop(object)
	return json.Marshal(object)
}

func jsonPatch(given, patch []byte) ([]byte, error) {
	operations, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		return nil, err
	}
	o := jsonpatch.NewApplyOptions()
	o.SupportNegativeIndices = false // RFC 6901 has no negative indices
	o.AccumulatedCopySizeLimit = copied
	return operations.ApplyWithOptions(given, o)
}
