package kubectl

import (
	"net/http"
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/apiserver/api"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// routeDiscovery lists groups, kinds and their paths for clients such as kubectl.
func (h *Handler) routeDiscovery() {
	h.handle("GET /api", func(w http.ResponseWriter, r *http.Request) error {
		return api.Write(w, http.StatusOK, metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}})
	})
	h.handle("GET /apis", func(w http.ResponseWriter, r *http.Request) error {
		return api.Write(w, http.StatusOK, groups())
	})
	for _, g := range groups().Groups {
		g.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "APIGroup"}
		h.handle("GET /apis/"+g.Name, func(w http.ResponseWriter, r *http.Request) error {
			return api.Write(w, http.StatusOK, g)
		})
	}
	for _, gv := range append(groupVersions(), authorization, usageGroup) {
		h.handle("GET "+api.Kind{Group: gv}.Path(), func(w http.ResponseWriter, r *http.Request) error {
			list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"}, GroupVersion: gv, APIResources: resources(gv)}
			return api.Write(w, http.StatusOK, list)
		})
	}
	h.handle("GET /version", func(w http.ResponseWriter, r *http.Request) error {
		return api.Write(w, http.StatusOK, map[string]string{"major": "1", "minor": "36", "gitVersion": "v1.36.0+crisp", "platform": "linux", "crisp": h.version})
	})
}

// categories returns the categories of a kind: "kubectl get all" lists those of "all".
func categories(k api.Kind) []string {
	if k.Name == "Pod" || k.Name == "Service" || k.Group == "apps/v1" || k.Group == "batch/v1" {
		return []string{"all"}
	}
	return nil
}

func groupVersions() []string {
	var list []string
	for _, k := range api.Kinds {
		if !slices.Contains(list, k.Group) {
			list = append(list, k.Group)
		}
	}
	return list
}

func groups() metav1.APIGroupList {
	list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIGroupList"}}
	for _, gv := range append(groupVersions(), authorization, usageGroup) {
		name, version, ok := strings.Cut(gv, "/")
		if !ok {
			continue // "v1" is below /api
		}
		v := metav1.GroupVersionForDiscovery{GroupVersion: gv, Version: version}
		list.Groups = append(list.Groups, metav1.APIGroup{Name: name, Versions: []metav1.GroupVersionForDiscovery{v}, PreferredVersion: v})
	}
	return list
}

// resources returns the resources of a group.
func resources(group string) (list []metav1.APIResource) {
	switch group {
	case authorization:
		return []metav1.APIResource{{Name: "selfsubjectaccessreviews", Kind: "SelfSubjectAccessReview", Verbs: metav1.Verbs{"create"}}}
	case usageGroup:
		return []metav1.APIResource{
			{Name: "nodes", Kind: "NodeMetrics", Verbs: metav1.Verbs{"get", "list"}},
			{Name: "pods", Kind: "PodMetrics", Namespaced: true, Verbs: metav1.Verbs{"get", "list"}},
		}
	}
	for _, k := range api.Kinds {
		if k.Group != group {
			continue
		}
		verbs := metav1.Verbs{"get", "list", "watch"}
		if k.Writable {
			verbs = append(verbs, "create", "update", "patch", "delete", "deletecollection")
		}
		if k.Name == "Namespace" { // accepted but not stored
			verbs = append(verbs, "create", "update", "patch")
		}
		list = append(list, metav1.APIResource{
			Name: k.Plural, SingularName: k.Singular, Namespaced: k.Namespaced, Kind: k.Name, Verbs: verbs, ShortNames: k.Short, Categories: categories(k),
		})
		if k.Name == "Deployment" {
			list = append(list, metav1.APIResource{Name: "deployments/scale", Namespaced: true, Group: "autoscaling", Version: "v1", Kind: "Scale", Verbs: metav1.Verbs{"get", "update", "patch"}})
		}
		if k.Name != "Pod" {
			continue
		}
		for sub, verbs := range map[string]metav1.Verbs{"log": {"get"}, "exec": {"create", "get"}, "attach": {"create", "get"}, "portforward": {"create", "get"}, "status": {"get"}, "ephemeralcontainers": {"get", "update", "patch"}, "resize": {"get", "update", "patch"}} {
			list = append(list, metav1.APIResource{Name: "pods/" + sub, Namespaced: true, Kind: "Pod", Verbs: verbs})
		}
	}
	slices.SortFunc(list, func(a, b metav1.APIResource) int { return strings.Compare(a.Name, b.Name) })
	return list
}
