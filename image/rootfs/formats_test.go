package rootfs

import (
	"testing"

	"github.com/crisp-cri/crisp/internal/formats"
)

// The files that are written about containers' root file systems.
func TestFormats(t *testing.T) { formats.Check[leaseRecord](t, "lease", nil) }
