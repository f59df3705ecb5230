package kubectl

import (
	"reflect"
	"strings"

	"github.com/crisp-cri/crisp/apiserver/api"
	columns "github.com/crisp-cri/crisp/apiserver/table"
)

// schemas has the OpenAPI schemas of Go types, by name. They are generated from the types of
// k8s.io/api: JSON tags, tags for strategic merges, SwaggerDoc.
type schemas map[string]map[string]any

// schemasOf returns the schemas of a group's kinds and of all types in them.
func schemasOf(gv string) schemas {
	s := schemas{}
	for _, k := range api.Kinds {
		if k.Group != gv {
			continue
		}
		t := reflect.TypeOf(columns.New(k.Name)).Elem()
		s.define(t)
		s[schemaName(t)]["x-kubernetes-group-version-kind"] = []any{gvk(k)}
	}
	return s
}

// gvk returns the identification of a kind in Kubernetes' OpenAPI documents.
func gvk(k api.Kind) map[string]string {
	group, version, ok := strings.Cut(k.Group, "/")
	if !ok {
		group, version = "", k.Group
	}
	return map[string]string{"group": group, "version": version, "kind": k.Name}
}

// schemaName is a type's name in Kubernetes' documents: io.k8s.api.core.v1.Pod.
func schemaName(t reflect.Type) string {
	return "io.k8s." + strings.ReplaceAll(strings.TrimPrefix(t.PkgPath(), "k8s.io/"), "/", ".") + "." + t.Name()
}

// of returns the schema of a value of type t.
func (s schemas) of(t reflect.Type) map[string]any {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	// The JSON form of some types differs from their Go type: a Time is a string, a Quantity a
	// string or a number.
	if written, ok := reflect.Zero(t).Interface().(interface {
		OpenAPISchemaType() []string
		OpenAPISchemaFormat() string
	}); ok {
		schema := map[string]any{"type": written.OpenAPISchemaType()[0]}
		if format := written.OpenAPISchemaFormat(); format != "" {
			schema["format"] = format
		}
		either, ok := written.(interface{ OpenAPIV3OneOfTypes() []string })
		if !ok {
			return schema
		}
		delete(schema, "type")
		var types []any
		for _, one := range either.OpenAPIV3OneOfTypes() {
			types = append(types, map[string]string{"type": one})
		}
		schema["oneOf"] = types
		s[schemaName(t)] = schema
		return reference(t)
	}
	switch t.Kind() {
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Float32, reflect.Float64:
		return map[string]any{"type": "number", "format": "double"}
	case reflect.Int32, reflect.Int64:
		return map[string]any{"type": "integer", "format": t.Kind().String()}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return map[string]any{"type": "string", "format": "byte"}
		}
		return map[string]any{"type": "array", "items": s.of(t.Elem())}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": s.of(t.Elem())}
	case reflect.Struct:
		s.define(t)
		return reference(t)
	}
	return map[string]any{"type": "object"}
}

// reference returns a reference to a schema. It is inside an allOf, since the field has other keys
// beside it.
func reference(t reflect.Type) map[string]any {
	return map[string]any{"allOf": []any{map[string]string{"$ref": "#/components/schemas/" + schemaName(t)}}}
}

// define adds the schema of a struct if it is missing.
func (s schemas) define(t reflect.Type) {
	name := schemaName(t)
	if _, ok := s[name]; ok {
		return
	}
	schema := map[string]any{"type": "object"}
	s[name] = schema // before the fields, as a type may contain itself
	properties := map[string]any{}
	required := s.fields(t, properties)
	if len(properties) > 0 {
		schema["properties"] = properties
	}
	if len(required) > 0 {
		schema["required"] = required
	}
	if text := docOf(t)[""]; text != "" {
		schema["description"] = text
	}
}

// fields adds the properties of a struct and returns the required ones: those without omitempty.
func (s schemas) fields(t reflect.Type, properties map[string]any) (required []string) {
	doc := docOf(t)
	for i := range t.NumField() {
		field := t.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case name == "-" || !field.IsExported():
			continue
		case name == "":
			if field.Anonymous {
				required = append(required, s.fields(field.Type, properties)...)
			}
			continue
		}
		property := s.of(field.Type)
		if text := doc[name]; text != "" {
			property["description"] = text
		}
		for tag, key := range map[string]string{"patchStrategy": "x-kubernetes-patch-strategy", "patchMergeKey": "x-kubernetes-patch-merge-key"} {
			if value := field.Tag.Get(tag); value != "" {
				property[key] = value
			}
		}
		properties[name] = property
		if !strings.Contains(options, "omitempty") && !strings.Contains(options, "omitzero") {
			required = append(required, name)
		}
	}
	return required
}

func docOf(t reflect.Type) map[string]string {
	if documented, ok := reflect.Zero(t).Interface().(interface{ SwaggerDoc() map[string]string }); ok {
		return documented.SwaggerDoc()
	}
	return nil
}
