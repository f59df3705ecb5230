package rootfs

import (
	"testing"

	"github.com/crisp-cri/crisp/internal/formats"
)

// What is written of containers' root file systems.
func TestFormats(t *testing.T) { formats.Check[leaseRecord](t, "lease", nil) }
