package rootfs

import (
	"testing"

	"github.com/crisp-cri/crisp/internal/formats"
)

// The format of the lease records of root file systems.
func TestFormats(t *testing.T) { formats.Check[leaseRecord](t, "lease", nil) }
