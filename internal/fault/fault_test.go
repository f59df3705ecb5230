package fault_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/crisp-cri/crisp/internal/fault"
)

// A kind survives wrapping, or the interceptor would answer Unknown for a user's mistake.
func TestKindSurvivesWrapping(t *testing.T) {
	inner := fault.NotFound.Errorf("no container %q", "x")
	err := fmt.Errorf("stop: %w", inner)
	if !errors.Is(err, fault.NotFound) || fault.KindOf(err) != fault.NotFound {
		t.Errorf("kind of %v is %v, want %v", err, fault.KindOf(err), fault.NotFound)
	}
	if errors.Is(err, fault.Invalid) {
		t.Errorf("%v is also Invalid", err)
	}
	if got, want := err.Error(), `stop: no container "x"`; got != want {
		t.Errorf("text is %q, want %q", got, want)
	}
}

// The outermost kind wins: the wrapping code knows better what the caller can do.
func TestOutermostKindWins(t *testing.T) {
	err := fault.Unavailable.Errorf("executor: %w", fault.NotFound.Errorf("no socket"))
	if got := fault.KindOf(err); got != fault.Unavailable {
		t.Errorf("got %v, want %v", got, fault.Unavailable)
	}
	if got := fault.KindOf(errors.Join(errors.New("a"), fault.Exists)); got != fault.Exists {
		t.Errorf("got %v, want %v", got, fault.Exists)
	}
	if got := fault.KindOf(errors.New("a")); got != fault.Internal {
		t.Errorf("got %v, want %v", got, fault.Internal)
	}
}
