package pull

import (
	"testing"

	"github.com/crisp-cri/crisp/test/formats"
)

// TestFormats reads records of the credentials with which images were pulled.
func TestFormats(t *testing.T) {
	formats.Check[Record](t, "pulled", nil)
}
