package idrange

import (
	"testing"

	"github.com/crisp-cri/crisp/internal/formats"
)

// Which user IDs a pod has.
func TestFormats(t *testing.T) {
	formats.Check[record](t, "range", nil)
}
