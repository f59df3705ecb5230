package executor

import (
	"bytes"
	"testing"

	"github.com/crisp-cri/crisp/test/formats"
)

// The formats in which an executor hands its state to its successor, of whichever release.
func TestFormats(t *testing.T) {
	formats.Check(t, "saved", func(data []byte, s *saved) error {
		read, err := readSaved(bytes.NewReader(data))
		if err == nil {
			*s = *read
		}
		return err
	})
}
