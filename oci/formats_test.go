package oci

import (
	"testing"

	"github.com/crisp-cri/crisp/oci/wire"
	"github.com/crisp-cri/crisp/test/formats"
)

// The formats of the records of sandboxes and containers, of crispd and the executor.
func TestFormats(t *testing.T) {
	formats.Check[containerRecord](t, "container", nil)
	formats.Check[sandboxRecord](t, "sandbox", nil)
	formats.Check[containerStatus](t, "container-status", nil)
	formats.Check[sandboxStatus](t, "sandbox-status", nil)
	formats.Check[wire.Exit](t, "exit", nil)
}
