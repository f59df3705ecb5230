package rootfs

import (
	"testing"

	"github.com/crisp-cri/crisp/test/formats"
)

func TestFormats(t *testing.T) { formats.Check[leaseRecord](t, "lease", nil) }
