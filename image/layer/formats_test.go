package layer

import (
	"testing"

	"github.com/crisp-cri/crisp/internal/formats"
)

// What is written of layers.
func TestFormats(t *testing.T) { formats.Check[record](t, "layer", nil) }
