package kubectl

import (
	"net/http"
	"strings"

	"github.com/crisp-cri/crisp/apiserver/api"
	"google.golang.org/protobuf/encoding/protowire"
)

// routeOpenAPI serves the part of an OpenAPI document that kubectl needs: the schemas (kubectl
// explain), and at every path that accepts objects the parameter fieldValidation, so that kubectl
// leaves validation to the server.
func (h *Handler) routeOpenAPI() {
	h.handle("GET /openapi/v3", func(w http.ResponseWriter, r *http.Request) error {
		paths := map[string]any{}
		for _, gv := range groupVersions() {
			name := strings.TrimPrefix(api.Kind{Group: gv}.Path(), "/")
			paths[name] = map[string]string{"serverRelativeURL": "/openapi/v3/" + name}
		}
		return api.Write(w, http.StatusOK, map[string]any{"paths": paths})
	})
	h.handle("GET /openapi/v2", h.openAPIv2)
	for _, gv := range groupVersions() {
		h.handle("GET /openapi/v3"+api.Kind{Group: gv}.Path(), func(w http.ResponseWriter, r *http.Request) error {
			return api.Write(w, http.StatusOK, h.openAPI(gv))
		})
	}
}

// openAPIv2 writes a document of version 2 that says nothing. kubectl checks the objects of a List
// by such a document, and passes those that it does not find there: the server checks them. kubectl
// takes it only as protobuf (gnostic's openapi.v2.Document).
func (h *Handler) openAPIv2(w http.ResponseWriter, _ *http.Request) error {
	text := func(b []byte, number protowire.Number, s string) []byte {
		return protowire.AppendString(protowire.AppendTag(b, number, protowire.BytesType), s)
	}
	info := text(text(nil, 1, "crisp"), 2, h.version)
	w.Header().Set("Content-Type", "application/com.github.proto-openapi.spec.v2.v1.0+protobuf")
	_, err := w.Write(text(text(nil, 1, "2.0"), 2, string(info)))
	return err
}

func (h *Handler) openAPI(gv string) map[string]any {
	paths := map[string]any{}
	for _, k := range api.Kinds {
		if k.Group != gv {
			continue
		}
		path := k.Path() + "/" + k.Plural
		parameters := []any{parameter("name", "path")}
		if k.Namespaced {
			path = k.Path() + "/namespaces/{namespace}/" + k.Plural
			parameters = append(parameters, parameter("namespace", "path"))
		}
		operation := func(action string) map[string]any {
			return map[string]any{
				"operationId": action + k.Name, "responses": map[string]any{"200": map[string]string{"description": "OK"}},
				"parameters":                      []any{parameter("dryRun", "query"), parameter("fieldManager", "query"), parameter("fieldValidation", "query")},
				"x-kubernetes-action":             action,
				"x-kubernetes-group-version-kind": gvk(k),
			}
		}
		if !k.Writable && k.Name != "Namespace" {
			paths[path] = map[string]any{"get": operation("list"), "parameters": parameters[1:]}
			continue
		}
		paths[path] = map[string]any{"post": operation("post"), "parameters": parameters[1:]}
		paths[path+"/{name}"] = map[string]any{"put": operation("put"), "patch": operation("patch"), "parameters": parameters}
	}
	return map[string]any{"openapi": "3.0.0", "info": map[string]string{"title": "crisp", "version": h.version}, "paths": paths,
		"components": map[string]any{"schemas": schemasOf(gv)}}
}

func parameter(name, in string) map[string]any {
	return map[string]any{"name": name, "in": in, "required": in == "path", "schema": map[string]any{"type": "string", "uniqueItems": true}}
}
