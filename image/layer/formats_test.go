package layer

import (
	"testing"

	"github.com/crisp-cri/crisp/internal/formats"
)

// The format of layer records.
func TestFormats(t *testing.T) { formats.Check[record](t, "layer", nil) }
