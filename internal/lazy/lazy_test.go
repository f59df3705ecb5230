package lazy_test

import (
	"errors"
	"testing"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/lazy"
)

// A failure, or a panic, is not kept; a success is.
func TestOnlySuccessIsKept(t *testing.T) {
	calls := 0
	get := lazy.Value(func() (int, error) {
		calls++
		switch calls {
		case 1:
			return 0, errors.New("out of descriptors")
		case 2:
			panic("bug")
		}
		return calls, nil
	})
	for range 2 {
		if err := fault.Protect(func() error { _, err := get(); return err }); err == nil {
			t.Error("a failure is hidden")
		}
	}
	for range 2 {
		if v, err := get(); v != 3 || err != nil {
			t.Errorf("got %d, %v; want 3", v, err)
		}
	}
}
