package server

import (
	"testing"

	kubelet "k8s.io/apimachinery/pkg/util/version"
)

// `kubectl get nodes -o wide` shows the version of crisp, even of a build from a commit without a
// tag. The kubelet parses a version like this.
func TestVersionOfTheKubelet(t *testing.T) {
	for built, want := range map[string]string{
		"v1.2.3":             "1.2.3",
		"1.2.3":              "1.2.3",
		"v1.2.3-4-g58dadf3":  "1.2.3-4-g58dadf3",
		"v1.2-3-g58dadf3":    "1.2",
		"58dadf3":            "0.0.0+58dadf3",
		"0123456-dirty":      "0.0.0+0123456-dirty",
		"a4af0bb-dirty-next": "0.0.0+a4af0bb-dirty-next",
		"unknown":            "0.0.0+unknown",
		"release/1_2":        "0.0.0+release-1-2",
	} {
		got, err := kubelet.ParseSemantic(numbered(built))
		if err != nil {
			got, err = kubelet.ParseGeneric(numbered(built))
		}
		if err != nil || got.String() != want {
			t.Errorf("%s: the kubelet has %v, want %s (%v)", built, got, want, err)
		}
	}
}
