package store

import (
	"testing"

	"github.com/crisp-cri/crisp/test/formats"
)

// The record of an object from the agent's API.
func TestFormats(t *testing.T) {
	formats.Check[record](t, "object", nil)
}
