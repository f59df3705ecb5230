package criruntime

import (
	"context"
	"fmt"
	"os"

	"github.com/crisp-cri/crisp/agent/podfiles"
	"github.com/crisp-cri/crisp/agent/podspec"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// addMessage adds the termination message to the status of an exited container: the end of its
// file or, if the container failed and its policy says so, of its log.
func (d *Driver) addMessage(ctx context.Context, s *cri.ContainerStatus) {
	fallback := v1.TerminationMessagePolicy(s.GetAnnotations()[podspec.AnnotationMessagePolicy]) == v1.TerminationMessageFallbackToLogsOnError &&
		s.ExitCode != 0 && s.Reason != "ContainerCannotRun"
	text := ""
	if path := s.GetAnnotations()[podspec.AnnotationMessagePath]; path != "" {
		for _, m := range s.GetMounts() {
			if m.ContainerPath == podspec.Absolute(path) {
				var err error
				if text, err = podfiles.Message(m.HostPath); err != nil && !os.IsNotExist(err) {
					text = fmt.Sprintf("Error on reading termination log %s: %v", m.HostPath, err)
				}
				break
			}
		}
	}
	if text == "" && fallback {
		text = podfiles.LogTail(ctx, s.GetLogPath())
	}
	switch {
	case text == "":
	case s.Message == "":
		s.Message = text
	default:
		s.Message += ": " + text
	}
}
