package image

import (
	"testing"

	"github.com/crisp-cri/crisp/internal/formats"
)

// The files that are written about images.
func TestFormats(t *testing.T) {
	formats.Check[record](t, "image", nil)
}
