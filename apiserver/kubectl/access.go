package kubectl

import (
	"net/http"

	"github.com/crisp-cri/crisp/apiserver/api"
	"github.com/crisp-cri/crisp/internal/fault"
	authorizationv1 "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// routeAccess answers "kubectl auth can-i" with yes: a client that can connect to the agent may do
// everything.
func (h *Handler) routeAccess() {
	h.handle("POST /apis/"+authorization+"/selfsubjectaccessreviews", func(w http.ResponseWriter, r *http.Request) error {
		var review authorizationv1.SelfSubjectAccessReview
		if err := api.Decode(r, &review); err != nil {
			return err
		}
		review.Status = authorizationv1.SubjectAccessReviewStatus{Allowed: true}
		return api.Write(w, http.StatusCreated, review)
	})
}

const authorization = "authorization.k8s.io/v1"

// routeNamespaces accepts namespaces without storing them. Every namespace exists: manifests
// contain namespaces, and a client that applies them must find them.
func (h *Handler) routeNamespaces() {
	k, _ := api.KindOf("Namespace")
	take := func(code int) func(http.ResponseWriter, *http.Request) error {
		return func(w http.ResponseWriter, r *http.Request) error {
			data, err := api.Body(r)
			if err != nil {
				return err
			}
			name := r.PathValue("name") // a patch needs only its name
			if name == "" {
				var n v1.Namespace
				if err := yaml.Unmarshal(data, &n); err != nil || n.Name == "" {
					return fault.Invalid.Errorf("metadata.name: is missing (%v)", err)
				}
				name = n.Name
			}
			return api.Show(w, k, code, api.Namespace(name))
		}
	}
	h.handle("POST /api/v1/namespaces", take(http.StatusCreated))
	h.handle("PUT /api/v1/namespaces/{name}", take(http.StatusOK))
	h.handle("PATCH /api/v1/namespaces/{name}", take(http.StatusOK))
	h.handle("DELETE /api/v1/namespaces/{name}", func(w http.ResponseWriter, r *http.Request) error {
		return api.Forbidden("every namespace is there: delete what is in it")
	})
}
