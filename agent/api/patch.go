package api

import (
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/agent/store"
	"github.com/crisp-cri/crisp/internal/fault"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

// mergeKeys tell the items of lists apart in strategic merge patches, as the
// tags of Kubernetes' types have them.
var mergeKeys = map[string]string{
	"containers": "name", "initContainers": "name", "ephemeralContainers": "name", "volumes": "name", "env": "name", "imagePullSecrets": "name",
	"ports": "containerPort", "volumeMounts": "mountPath", "volumeDevices": "devicePath", "hostAliases": "ip", "topologySpreadConstraints": "topologyKey",
}

// applied is the annotation with what an object was last given as, by each of those
// who apply it: what is not in their next one goes.
const applied = "apply.io.crisp/by-manager"

// patch changes what was given of an object: by a strategic or a plain merge patch,
// a JSON patch, or by applying it as the server's side of kubectl apply does.
func (s *Server) patch(w http.ResponseWriter, r *http.Request, k Kind) error {
	patch, err := body(r)
	if err != nil {
		return err
	}
	kind := r.Header.Get("Content-Type")
	if types.PatchType(kind) == types.ApplyYAMLPatchType {
		return s.apply(w, r, k, patch)
	}
	found, err := s.shown(r, k)
	if err == nil {
		err = owner(found)
	}
	if err != nil {
		return err
	}
	given, err := s.Store.Given(key(r, k))
	if err != nil {
		return err
	}
	// A patch may name the version that it is for. One that does not is for any.
	version := found.GetResourceVersion()
	versioned, err := editMetadata(given, func(m map[string]any) { m["resourceVersion"] = version })
	if err != nil {
		return err
	}
	patched, err := applyPatch(kind, versioned, patch)
	if err != nil {
		return err
	}
	patched, err = editMetadata(patched, func(m map[string]any) {
		if m["resourceVersion"] == version {
			delete(m, "resourceVersion")
		}
	})
	if err != nil {
		return err
	}
	return s.putText(w, r, k, r.PathValue("name"), patched, store.PutOptions{Update: true})
}

// apply makes an object what it is applied as, and makes it if it is not there.
// Fields that the last apply of the same field manager had and this one has not go,
// those that others have set stay. Nobody owns a field, so there are no conflicts.
func (s *Server) apply(w http.ResponseWriter, r *http.Request, k Kind, text []byte) error {
	next, err := yaml.YAMLToJSON(text)
	if err != nil {
		return fault.Invalid.Errorf("%v", err)
	}
	given, err := s.Store.Given(key(r, k))
	o := store.PutOptions{Update: true}
	if errors.Is(err, fault.NotFound) {
		given, o, err = []byte(`{}`), store.PutOptions{Create: true}, nil
		if found, findErr := s.find(r, k); findErr == nil { // a file's, or a workload's
			err = owner(found)
		}
	}
	if err != nil {
		return err
	}
	merged, err := threeWay(given, next, r.URL.Query().Get("fieldManager"))
	if err != nil {
		return err
	}
	return s.putText(w, r, k, r.PathValue("name"), merged, o)
}

// threeWay merges what is applied by a manager into what was given, less what the
// manager has applied last.
func threeWay(given, next []byte, manager string) ([]byte, error) {
	var to, from map[string]any
	if err := json.Unmarshal(given, &to); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(next, &from); err != nil {
		return nil, fault.Invalid.Errorf("%v", err)
	}
	if to == nil {
		to = map[string]any{}
	}
	lasts := map[string]map[string]any{}
	if text, ok := annotationsOf(to)[applied].(string); ok {
		if err := json.Unmarshal([]byte(text), &lasts); err != nil {
			return nil, fault.Invalid.Errorf("annotation %s: %v", applied, err)
		}
	}
	if m, ok := from["metadata"].(map[string]any); ok {
		for _, name := range []string{"managedFields", "resourceVersion", "uid", "creationTimestamp", "generation"} {
			delete(m, name)
		}
		delete(annotationsOf(from), applied)
	}
	delete(from, "status")
	drop(to, lasts[manager], from)
	lasts[manager] = from
	text := mustMarshal(lasts)
	merged, ok := merge(to, clone(from), true).(map[string]any)
	if m, isMap := merged["metadata"].(map[string]any); ok && isMap {
		if annotationsOf(merged) == nil {
			m["annotations"] = map[string]any{}
		}
		annotationsOf(merged)[applied] = string(text)
		return mustMarshal(merged), nil
	}
	return nil, fault.Invalid.Errorf("metadata: is missing")
}

func annotationsOf(o map[string]any) map[string]any {
	m, _ := o["metadata"].(map[string]any)
	a, _ := m["annotations"].(map[string]any)
	return a
}

// mustMarshal writes what was read from JSON.
func mustMarshal(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return data
}

// drop takes out of an object what was applied last and is not applied any more.
func drop(to, last, next map[string]any) {
	for name, was := range last {
		is, still := next[name]
		if !still {
			delete(to, name)
			continue
		}
		if wasMap, ok := was.(map[string]any); ok {
			toMap, isMap := to[name].(map[string]any)
			nextMap, _ := is.(map[string]any)
			if isMap {
				drop(toMap, wasMap, nextMap)
			}
		}
		keyed := mergeKeys[name]
		wasList, ok := was.([]any)
		toList, isList := to[name].([]any)
		if keyed == "" || !ok || !isList {
			continue
		}
		nextList, _ := is.([]any)
		item := func(list []any, of any) map[string]any {
			m, _ := of.(map[string]any)
			for _, other := range list {
				if o, ok := other.(map[string]any); ok && o[keyed] == m[keyed] {
					return o
				}
			}
			return nil
		}
		to[name] = slices.DeleteFunc(toList, func(there any) bool {
			was, is := item(wasList, there), item(nextList, there)
			if was != nil && is != nil {
				if m, ok := there.(map[string]any); ok {
					drop(m, was, is)
				}
			}
			return was != nil && is == nil
		})
	}
}

func applyPatch(kind string, given, patch []byte) ([]byte, error) {
	var to any
	if err := json.Unmarshal(given, &to); err != nil {
		return nil, err
	}
	strategic := false
	switch types.PatchType(kind) {
	case types.JSONPatchType:
		patched, err := jsonPatch(to, patch)
		if err != nil {
			return nil, err
		}
		return json.Marshal(patched)
	case types.StrategicMergePatchType:
		strategic = true
	case types.MergePatchType:
	default:
		return nil, fault.Invalid.Errorf("patches of the type %q are not supported: want %s, %s, %s or %s", kind,
			types.StrategicMergePatchType, types.MergePatchType, types.JSONPatchType, types.ApplyYAMLPatchType)
	}
	var from any
	if err := json.Unmarshal(patch, &from); err != nil {
		return nil, fault.Invalid.Errorf("%v", err)
	}
	return json.Marshal(merge(to, from, strategic))
}

// merge is RFC 7386. If it is to be strategic, lists whose items have a key are
// merged item by item, and Kubernetes' directives ($patch, $retainKeys,
// $deleteFromPrimitiveList) are followed.
func merge(to, from any, strategic bool) any {
	patch, ok := from.(map[string]any)
	if !ok {
		return from
	}
	target, ok := to.(map[string]any)
	if !ok {
		target = map[string]any{}
	}
	if strategic {
		if patch["$patch"] == "replace" {
			target = map[string]any{}
		}
		if keep, ok := patch["$retainKeys"].([]any); ok {
			maps.DeleteFunc(target, func(key string, _ any) bool { return !slices.Contains(keep, any(key)) })
		}
	}
	for key, value := range patch {
		items, isList := value.([]any)
		m, _ := value.(map[string]any)
		switch of, primitive := strings.CutPrefix(key, "$deleteFromPrimitiveList/"); {
		case value == nil, strategic && m["$patch"] == "delete":
			delete(target, key)
		case strategic && primitive:
			list, _ := target[of].([]any)
			target[of] = slices.DeleteFunc(list, func(item any) bool { return slices.Contains(items, item) })
		case strategic && strings.HasPrefix(key, "$"): // of the order, and what is done already
		case strategic && isList && mergeKeys[key] != "":
			target[key] = mergeList(target[key], items, mergeKeys[key])
		default:
			target[key] = merge(target[key], value, strategic)
		}
	}
	return target
}

func mergeList(to any, patch []any, key string) any {
	list, _ := to.([]any)
	keyOf := func(item any) any {
		m, _ := item.(map[string]any)
		return m[key]
	}
	for _, item := range patch {
		if m, _ := item.(map[string]any); m["$patch"] == "replace" && m[key] == nil {
			list = nil
		}
	}
	for _, item := range patch {
		i := slices.IndexFunc(list, func(old any) bool { return keyOf(old) == keyOf(item) })
		m, _ := item.(map[string]any)
		switch {
		case m["$patch"] == "replace" && m[key] == nil: // that is done
		case m["$patch"] == "delete" && i >= 0:
			list = slices.Delete(list, i, i+1)
		case m["$patch"] == "delete":
		case i >= 0:
			list[i] = merge(list[i], item, true)
		default:
			list = append(list, merge(nil, item, true))
		}
	}
	return list
}
