package image

import (
	"testing"

	"github.com/crisp-cri/crisp/test/formats"
)

func TestFormats(t *testing.T) {
	formats.Check[record](t, "image", nil)
}
