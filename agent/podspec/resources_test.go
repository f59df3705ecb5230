package podspec

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
)

// A pod can use memory up to its limit, or else what all pods can have.
func TestMemoryOfPod(t *testing.T) {
	for _, test := range []struct{ spec, want string }{
		{"  containers: [{name: a, image: i}]\n", "14Gi"},
		{"  containers: [{name: a, image: i, resources: {limits: {memory: 64Mi}}}, {name: b, image: i}]\n", "14Gi"},
		{"  containers: [{name: a, image: i, resources: {limits: {memory: 64Mi}}}]\n  initContainers: [{name: s, image: i, restartPolicy: Always, resources: {limits: {memory: 8Mi}}}]\n", "72Mi"},
		{"  containers: [{name: a, image: i, resources: {limits: {memory: 20Gi}}}]\n", "14Gi"},
		{"  resources: {limits: {memory: 32Mi}}\n  containers: [{name: a, image: i}]\n", "32Mi"},
	} {
		if got, want := input(t, test.spec).MostMemory(), resource.MustParse(test.want); got != want.Value() {
			t.Errorf("%s has %d bytes, want %s", test.spec, got, test.want)
		}
	}
	in := input(t, "  containers: [{name: a, image: i}]\n")
	in.Node.Allocatable = nil
	if got := in.MostMemory(); got != 0 {
		t.Errorf("%d bytes of a node that is not known", got)
	}
}
