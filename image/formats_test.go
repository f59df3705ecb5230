package image

import (
	"testing"

	"github.com/crisp-cri/crisp/internal/formats"
)

// What is written of images.
func TestFormats(t *testing.T) {
	formats.Check[record](t, "image", nil)
}
