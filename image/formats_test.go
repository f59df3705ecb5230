package image

import (
	"testing"

	"github.com/crisp-cri/crisp/internal/formats"
)

// The format of image records.
func TestFormats(t *testing.T) {
	formats.Check[record](t, "image", nil)
}
