package store

import (
	"testing"

	"github.com/crisp-cri/crisp/test/formats"
)

// The record of an object from the agent's API. Earlier releases kept the templates that a workload
// had had.
func TestFormats(t *testing.T) {
	formats.Check[record](t, "object", nil, "revisions")
}
