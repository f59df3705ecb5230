package kubectl

import (
	"bytes"
	"encoding/json"
	"mime"
	"net/http"

	"github.com/crisp-cri/crisp/agent/api"
	"github.com/crisp-cri/crisp/internal/fault"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// protobufMagic begins an object in Kubernetes' protobuf, which kubectl create and
// run send whatever the server is.
var protobufMagic = []byte("k8s\x00")

// messages are the objects that may come so, each empty.
var messages = map[string]func() interface{ Unmarshal([]byte) error }{
	"Pod":                     func() interface{ Unmarshal([]byte) error } { return &v1.Pod{} },
	"ConfigMap":               func() interface{ Unmarshal([]byte) error } { return &v1.ConfigMap{} },
	"Secret":                  func() interface{ Unmarshal([]byte) error } { return &v1.Secret{} },
	"PersistentVolumeClaim":   func() interface{ Unmarshal([]byte) error } { return &v1.PersistentVolumeClaim{} },
	"Namespace":               func() interface{ Unmarshal([]byte) error } { return &v1.Namespace{} },
	"RuntimeClass":            func() interface{ Unmarshal([]byte) error } { return &nodev1.RuntimeClass{} },
	"Deployment":              func() interface{ Unmarshal([]byte) error } { return &appsv1.Deployment{} },
	"DaemonSet":               func() interface{ Unmarshal([]byte) error } { return &appsv1.DaemonSet{} },
	"Job":                     func() interface{ Unmarshal([]byte) error } { return &batchv1.Job{} },
	"Scale":                   func() interface{ Unmarshal([]byte) error } { return &autoscalingv1.Scale{} },
	"DeleteOptions":           func() interface{ Unmarshal([]byte) error } { return &metav1.DeleteOptions{} },
	"SelfSubjectAccessReview": func() interface{ Unmarshal([]byte) error } { return &authorizationv1.SelfSubjectAccessReview{} },
}

// objectOf returns an empty object of a kind that is writable.
func objectOf(k api.Kind) any { return messages[k.Name]() }

// isProtobuf reports whether a request carries such an object.
func isProtobuf(r *http.Request) bool {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return err == nil && kind == runtime.ContentTypeProtobuf
}

// fromProtobuf writes such an object as JSON.
func fromProtobuf(data []byte) ([]byte, error) {
	rest, ok := bytes.CutPrefix(data, protobufMagic)
	if !ok {
		return nil, fault.Invalid.Errorf("the request is no protobuf of Kubernetes")
	}
	var wrapped runtime.Unknown
	if err := wrapped.Unmarshal(rest); err != nil {
		return nil, fault.Invalid.Errorf("the request is no protobuf of Kubernetes: %v", err)
	}
	message := messages[wrapped.Kind]
	if message == nil {
		return nil, fault.Invalid.Errorf("%s is not taken as protobuf: send JSON", wrapped.Kind)
	}
	o := message()
	if err := o.Unmarshal(wrapped.Raw); err != nil {
		return nil, fault.Invalid.Errorf("%s: %v", wrapped.Kind, err)
	}
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	var fields map[string]any
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, err
	}
	fields["apiVersion"], fields["kind"] = wrapped.APIVersion, wrapped.Kind
	return json.Marshal(fields)
}
