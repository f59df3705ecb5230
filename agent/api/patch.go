package api

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/agent/store"
	"github.com/crisp-cri/crisp/internal/fault"
	"k8s.io/apimachinery/pkg/types"
)

// mergeKeys tell the items of lists apart in strategic merge patches, as the
// tags of Kubernetes' types have them.
var mergeKeys = map[string]string{
	"containers": "name", "initContainers": "name", "ephemeralContainers": "name", "volumes": "name", "env": "name", "imagePullSecrets": "name",
	"ports": "containerPort", "volumeMounts": "mountPath", "volumeDevices": "devicePath", "hostAliases": "ip", "topologySpreadConstraints": "topologyKey",
}

// patch changes what was given of an object, by a strategic or a plain merge
// patch.
func (s *Server) patch(w http.ResponseWriter, r *http.Request, k Kind) error {
	patch, err := body(r)
	if err != nil {
		return err
	}
	found, err := s.find(r, k)
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
	patched, err := applyPatch(r.Header.Get("Content-Type"), given, patch)
	if err != nil {
		return err
	}
	return s.putText(w, r, k, r.PathValue("name"), patched, store.PutOptions{Update: true})
}

func applyPatch(kind string, given, patch []byte) ([]byte, error) {
	strategic := types.PatchType(kind) == types.StrategicMergePatchType
	if !strategic && types.PatchType(kind) != types.MergePatchType {
		return nil, fault.Invalid.Errorf("patches of the type %q are not supported: want %s or %s", kind, types.StrategicMergePatchType, types.MergePatchType)
	}
	var to, from any
	if err := json.Unmarshal(given, &to); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(patch, &from); err != nil {
		return nil, fault.Invalid.Errorf("%v", err)
	}
	return json.Marshal(merge(to, from, strategic))
}

// merge is RFC 7386. If it is to be strategic, lists whose items have a key are
// merged item by item.
func merge(to, from any, strategic bool) any {
	patch, ok := from.(map[string]any)
	if !ok {
		return from
	}
	target, ok := to.(map[string]any)
	if !ok {
		target = map[string]any{}
	}
	for key, value := range patch {
		items, isList := value.([]any)
		switch {
		case value == nil:
			delete(target, key)
		case strategic && strings.HasPrefix(key, "$"): // of the order, and of the keys of unions
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
		i := slices.IndexFunc(list, func(old any) bool { return keyOf(old) == keyOf(item) })
		m, _ := item.(map[string]any)
		switch {
		case m["$patch"] == "delete" && i >= 0:
			list = slices.Delete(list, i, i+1)
		case m["$patch"] == "delete":
		case i >= 0:
			list[i] = merge(list[i], item, true)
		default:
			list = append(list, item)
		}
	}
	return list
}
