package kubectl

import (
	"encoding/json"
	"net/http"

	"github.com/crisp-cri/crisp/apiserver/api"
	"github.com/crisp-cri/crisp/apiserver/store"
	"github.com/crisp-cri/crisp/internal/fault"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// routeScale routes the scale subresource of Deployments (kubectl scale).
func (h *Handler) routeScale() {
	const path = "/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale"
	h.mux.Handle("GET "+path, h.server.ObjectHandler(deploymentKind, h.getScale))
	for _, verb := range []string{"PUT", "PATCH"} {
		h.mux.Handle(verb+" "+path, h.server.ObjectHandler(deploymentKind, h.setScale))
	}
}

var deploymentKind, _ = api.KindOf("Deployment")

func (h *Handler) scale(r *http.Request) (*appsv1.Deployment, *autoscalingv1.Scale, error) {
	o, err := h.server.Find(r, deploymentKind)
	if err != nil {
		return nil, nil, err
	}
	d := o.(*appsv1.Deployment)
	scale := &autoscalingv1.Scale{TypeMeta: metav1.TypeMeta{APIVersion: "autoscaling/v1", Kind: "Scale"}}
	scale.Name, scale.Namespace, scale.UID, scale.ResourceVersion, scale.CreationTimestamp = d.Name, d.Namespace, d.UID, d.ResourceVersion, d.CreationTimestamp
	scale.Spec.Replicas, scale.Status.Replicas = ptr.Deref(d.Spec.Replicas, 1), d.Status.Replicas
	scale.Status.Selector = metav1.FormatLabelSelector(d.Spec.Selector)
	return d, scale, nil
}

func (h *Handler) getScale(w http.ResponseWriter, r *http.Request) error {
	_, scale, err := h.scale(r)
	if err != nil {
		return err
	}
	return api.Write(w, http.StatusOK, scale)
}

func (h *Handler) setScale(w http.ResponseWriter, r *http.Request) error {
	text, err := api.Body(r) // first, since the body may take long to arrive
	if err != nil {
		return err
	}
	d, scale, err := h.scale(r)
	if err != nil {
		return err
	}
	if r.Method == http.MethodPatch {
		now, err := json.Marshal(scale)
		if err != nil {
			return err
		}
		if text, err = applyPatch(scale, r.Header.Get("Content-Type"), now, text); err != nil {
			return err
		}
	}
	var asked autoscalingv1.Scale
	if err := json.Unmarshal(text, &asked); err != nil {
		return fault.Invalid.Errorf("%v", err)
	}
	if v := asked.ResourceVersion; v != "" && v != scale.ResourceVersion {
		return fault.WrongState.Errorf("deployment %s/%s has been changed: read it again", d.Namespace, d.Name)
	}
	given, _, err := h.server.Given(r, deploymentKind)
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"replicas": asked.Spec.Replicas}})
	if err != nil {
		return err
	}
	if text, err = applyPatch(d, "application/merge-patch+json", given, patch); err != nil {
		return err
	}
	// The answer is a Scale, not the Deployment.
	quiet := &headersOnly{header: http.Header{}}
	if err := h.server.Put(quiet, r, deploymentKind, text, store.PutOptions{Update: true}); err != nil {
		return err
	}
	if _, scale, err = h.scale(r); err != nil {
		return err
	}
	return api.Write(w, http.StatusOK, scale)
}

// headersOnly discards the body of a response.
type headersOnly struct{ header http.Header }

func (h *headersOnly) Header() http.Header         { return h.header }
func (h *headersOnly) Write(p []byte) (int, error) { return len(p), nil }
func (h *headersOnly) WriteHeader(int)             {}
