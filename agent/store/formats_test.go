package store

import (
	"testing"

	"github.com/crisp-cri/crisp/internal/formats"
)

// An object that was given to the agent's API.
func TestFormats(t *testing.T) {
	formats.Check[record](t, "object", nil)
}
