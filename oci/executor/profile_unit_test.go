package executor

import (
	"errors"
	"testing"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
)

func TestProfileIsBounded(t *testing.T) {
	var b bounded
	if n, err := b.Write(make([]byte, wire.MaxProfile)); n != wire.MaxProfile || err != nil {
		t.Fatalf("got %d, %v", n, err)
	}
	if n, err := b.Write([]byte{1}); n != 0 || !errors.Is(err, fault.Invalid) || b.Len() != wire.MaxProfile {
		t.Errorf("got %d, %v, and %d bytes", n, err, b.Len())
	}
}
