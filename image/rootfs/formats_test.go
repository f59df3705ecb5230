package rootfs

import (
	"testing"

	"github.com/crisp-cri/crisp/internal/formats"
)

func TestFormats(t *testing.T) { formats.Check[leaseRecord](t, "lease", nil) }
