package source

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/crisp-cri/crisp/test/formats"
)

// The containers that crisp debug has added to a pod.
func TestFormats(t *testing.T) {
	formats.CheckValue(t, "ephemeral", []v1.EphemeralContainer{{
		EphemeralContainerCommon: v1.EphemeralContainerCommon{
			Name: "shell", Image: "registry/tools:1", Command: []string{"sh"}, Stdin: true, TTY: true,
			Env: []v1.EnvVar{{Name: "A", Value: "b"}}, TerminationMessagePolicy: v1.TerminationMessageReadFile,
		},
		TargetContainerName: "app",
	}}, nil)
}
