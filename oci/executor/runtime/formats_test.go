package runtime

import (
	"testing"

	"github.com/crisp-cri/crisp/test/formats"
)

// What is kept of a container beside libcontainer's state, for a successor of whichever release.
func TestRuntimeFormats(t *testing.T) {
	formats.Check[engine](t, "engine", nil)
	formats.Check[Task](t, "shim", nil)
	formats.Check[unsavedState](t, "begun", nil)
}
