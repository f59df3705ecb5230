package network

import (
	"testing"

	"github.com/crisp-cri/crisp/test/formats"
)

// The format of an attachment, by which every later release must detach the pod.
func TestFormats(t *testing.T) {
	formats.Check[attachment](t, "attachment", nil)
}
