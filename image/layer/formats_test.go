package layer

import (
	"testing"

	"github.com/crisp-cri/crisp/internal/formats"
)

// The files that are written about layers.
func TestFormats(t *testing.T) { formats.Check[record](t, "layer", nil) }
