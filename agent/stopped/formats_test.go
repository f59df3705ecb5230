package stopped

import (
	"testing"

	"github.com/crisp-cri/crisp/internal/formats"
)

// The stops of pods, and a drain that has begun.
func TestFormats(t *testing.T) { formats.Check[file](t, "stopped", nil) }
