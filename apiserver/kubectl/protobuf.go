package kubectl

import (
	"bytes"
	"encoding/json"
	"mime"
	"net/http"

	columns "github.com/crisp-cri/crisp/apiserver/table"
	"github.com/crisp-cri/crisp/internal/fault"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// protobufMagic is the prefix of an object in Kubernetes' protobuf encoding. kubectl create and run
// send it to any server.
var protobufMagic = []byte("k8s\x00")

// A message can be decoded from protobuf, like all objects of Kubernetes.
type message interface{ Unmarshal([]byte) error }

// messageOf returns an empty message of a kind that clients send as protobuf; nil for any other.
func messageOf(kind string) message {
	switch kind {
	case "Scale":
		return &autoscalingv1.Scale{}
	case "DeleteOptions":
		return &metav1.DeleteOptions{}
	case "SelfSubjectAccessReview":
		return &authorizationv1.SelfSubjectAccessReview{}
	}
	o, _ := columns.New(kind).(message)
	return o
}

// isProtobuf reports whether the body of a request is protobuf.
func isProtobuf(r *http.Request) bool {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return err == nil && kind == runtime.ContentTypeProtobuf
}

// fromProtobuf converts an object to JSON.
func fromProtobuf(data []byte) ([]byte, error) {
	rest, ok := bytes.CutPrefix(data, protobufMagic)
	if !ok {
		return nil, fault.Invalid.Errorf("the request is no protobuf of Kubernetes")
	}
	var wrapped runtime.Unknown
	if err := wrapped.Unmarshal(rest); err != nil {
		return nil, fault.Invalid.Errorf("the request is no protobuf of Kubernetes: %v", err)
	}
	o := messageOf(wrapped.Kind)
	if o == nil {
		return nil, fault.NotFound.Errorf("this node has no kind %s of %s", wrapped.Kind, wrapped.APIVersion)
	}
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
