package pullrecords

import (
	"testing"

	"github.com/crisp-cri/crisp/internal/formats"
)

// TestFormats reads records of which credentials an image was pulled with.
func TestFormats(t *testing.T) {
	formats.Check[Record](t, "pulled", nil)
}
