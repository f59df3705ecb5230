package image

import (
	"testing"

	"github.com/crisp-cri/crisp/internal/formats"
)

func TestFormats(t *testing.T) {
	formats.Check[record](t, "image", nil)
}
