package api

import (
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/crisp-cri/crisp/internal/fault"
)

// A patchOp is an operation of a JSON patch (RFC 6902).
type patchOp struct {
	Op    string           `json:"op"`
	Path  string           `json:"path"`
	From  string           `json:"from"`
	Value *json.RawMessage `json:"value"`
}

// jsonPatch applies the operations of a JSON patch, all or none.
func jsonPatch(doc any, patch []byte) (any, error) {
	var ops []patchOp
	if err := json.Unmarshal(patch, &ops); err != nil {
		return nil, fault.Invalid.Errorf("JSON patch: %v", err)
	}
	for i, op := range ops {
		next, err := op.apply(doc)
		if err != nil {
			return nil, fault.Invalid.Errorf("JSON patch: operation %d, %s %s: %v", i, op.Op, op.Path, err)
		}
		doc = next
	}
	return doc, nil
}

func (op *patchOp) apply(doc any) (any, error) {
	path, err := pointer(op.Path)
	if err != nil {
		return nil, err
	}
	var value any
	switch op.Op {
	case "add", "replace", "test":
		if op.Value == nil {
			return nil, fault.Invalid.Errorf("value is missing")
		}
		if err := json.Unmarshal(*op.Value, &value); err != nil {
			return nil, err
		}
	case "move", "copy":
		from, err := pointer(op.From)
		if err != nil {
			return nil, err
		}
		if value, err = lookUp(doc, from); err != nil {
			return nil, err
		}
		value = clone(value)
		if op.Op == "move" {
			if len(path) > len(from) && slices.Equal(path[:len(from)], from) {
				return nil, fault.Invalid.Errorf("%s cannot be moved into itself", op.From)
			}
			if doc, err = edit(doc, from, remove); err != nil {
				return nil, err
			}
		}
	}
	switch op.Op {
	case "add", "move", "copy":
		return edit(doc, path, add(value))
	case "replace":
		return edit(doc, path, replace(value))
	case "remove":
		return edit(doc, path, remove)
	case "test":
		is, err := lookUp(doc, path)
		if err == nil && !reflect.DeepEqual(is, value) {
			err = fault.Invalid.Errorf("it has another value")
		}
		return doc, err
	}
	return nil, fault.Invalid.Errorf("there is no such operation")
}

// pointer reads a JSON pointer (RFC 6901).
func pointer(text string) ([]string, error) {
	if text == "" {
		return nil, nil
	}
	if text[0] != '/' {
		return nil, fault.Invalid.Errorf("%q is no JSON pointer", text)
	}
	names := strings.Split(text[1:], "/")
	for i, name := range names {
		names[i] = strings.ReplaceAll(strings.ReplaceAll(name, "~1", "/"), "~0", "~")
	}
	return names, nil
}

func clone(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for key, item := range v {
			out[key] = clone(item)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = clone(item)
		}
		return out
	}
	return v
}

// index reads an index of a list of n; with end, "-" and n are the place behind it.
func index(name string, n int, end bool) (int, error) {
	if end && name == "-" {
		return n, nil
	}
	i, err := strconv.Atoi(name)
	if err != nil || i < 0 || i > n || i == n && !end || name != strconv.Itoa(i) {
		return 0, fault.Invalid.Errorf("there is no item %s", name)
	}
	return i, nil
}

// lookUp is what a pointer points at.
func lookUp(doc any, path []string) (any, error) {
	for _, name := range path {
		switch v := doc.(type) {
		case map[string]any:
			item, ok := v[name]
			if !ok {
				return nil, fault.Invalid.Errorf("there is no %s", name)
			}
			doc = item
		case []any:
			i, err := index(name, len(v), false)
			if err != nil {
				return nil, err
			}
			doc = v[i]
		default:
			return nil, fault.Invalid.Errorf("there is no %s", name)
		}
	}
	return doc, nil
}

// A patchEdit is made to the parent of what a pointer points at; it returns the parent.
type patchEdit func(parent any, name string) (any, error)

// edit changes what is at path and returns the document.
func edit(doc any, path []string, change patchEdit) (any, error) {
	if len(path) == 0 { // the document itself
		m, err := change(map[string]any{"": doc}, "")
		if err != nil {
			return nil, err
		}
		return m.(map[string]any)[""], nil
	}
	if len(path) == 1 {
		return change(doc, path[0])
	}
	child, err := lookUp(doc, path[:1])
	if err != nil {
		return nil, err
	}
	if child, err = edit(child, path[1:], change); err != nil {
		return nil, err
	}
	return replace(child)(doc, path[0])
}

func add(value any) patchEdit {
	return func(parent any, name string) (any, error) {
		switch p := parent.(type) {
		case map[string]any:
			p[name] = value
			return p, nil
		case []any:
			i, err := index(name, len(p), true)
			if err != nil {
				return nil, err
			}
			return slices.Insert(p, i, value), nil
		}
		return nil, fault.Invalid.Errorf("there is nothing to add %s to", name)
	}
}

func replace(value any) patchEdit {
	return func(parent any, name string) (any, error) {
		if _, err := lookUp(parent, []string{name}); err != nil {
			return nil, err
		}
		if list, ok := parent.([]any); ok {
			i, err := index(name, len(list), false)
			if err != nil {
				return nil, err
			}
			list[i] = value
			return list, nil
		}
		parent.(map[string]any)[name] = value
		return parent, nil
	}
}

func remove(parent any, name string) (any, error) {
	if _, err := lookUp(parent, []string{name}); err != nil {
		return nil, err
	}
	if list, ok := parent.([]any); ok {
		i, err := index(name, len(list), false)
		if err != nil {
			return nil, err
		}
		return slices.Delete(list, i, i+1), nil
	}
	delete(parent.(map[string]any), name)
	return parent, nil
}
