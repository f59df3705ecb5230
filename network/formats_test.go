package network

import (
	"testing"

	"github.com/crisp-cri/crisp/internal/formats"
)

// By what a pod was attached, whichever release did it, it is detached.
func TestFormats(t *testing.T) {
	formats.Check[attachment](t, "attachment", nil)
}
