package kubectl

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/crisp-cri/crisp/internal/fault"
)

// "kubectl autoscale" sends a kind that the node does not have: it is not found, as its path would be.
func TestUnknownKind(t *testing.T) {
	unknown := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "autoscaling/v1", Kind: "HorizontalPodAutoscaler"}}
	raw, err := unknown.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	_, err = fromProtobuf(slices.Concat(protobufMagic, raw))
	if !errors.Is(err, fault.NotFound) || !strings.Contains(err.Error(), "HorizontalPodAutoscaler of autoscaling/v1") {
		t.Errorf("%v", err)
	}
}
