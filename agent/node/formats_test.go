package node

import (
	"testing"

	"github.com/crisp-cri/crisp/test/formats"
)

// The record of pods' user IDs.
func TestFormats(t *testing.T) {
	formats.Check[idRecord](t, "range", nil)
}
