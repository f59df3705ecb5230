package network

import (
	"testing"

	"github.com/crisp-cri/crisp/internal/formats"
)

// A pod is detached by its attachment, whichever release wrote that.
func TestFormats(t *testing.T) {
	formats.Check[attachment](t, "attachment", nil)
}
