package pullrecords

import (
	"testing"

	"github.com/crisp-cri/crisp/internal/formats"
)

// Who has pulled an image.
func TestFormats(t *testing.T) {
	formats.Check[Record](t, "pulled", nil)
}
