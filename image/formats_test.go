package image

import (
	"testing"

	"github.com/crisp-cri/crisp/internal/formats"
)

// What is written of images and of containers' root file systems.
func TestFormats(t *testing.T) {
	formats.Check[record](t, "image", nil)
	formats.Check[leaseRecord](t, "lease", nil)
}
