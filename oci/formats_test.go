package oci

import (
	"testing"

	"github.com/crisp-cri/crisp/internal/formats"
	"github.com/crisp-cri/crisp/oci/wire"
)

// What crispd and the executor write about sandboxes and containers.
func TestFormats(t *testing.T) {
	formats.Check[containerRecord](t, "container", nil)
	formats.Check[sandboxRecord](t, "sandbox", nil)
	formats.Check[containerStatus](t, "container-status", nil)
	formats.Check[sandboxStatus](t, "sandbox-status", nil)
	formats.Check[wire.Exit](t, "exit", nil)
}
