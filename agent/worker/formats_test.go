package worker

import (
	"testing"

	"github.com/crisp-cri/crisp/test/formats"
)

// The stopped pods, and a running drain.
func TestFormats(t *testing.T) { formats.Check[stopsFile](t, "stopped", nil) }
