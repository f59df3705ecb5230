package undo_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/undo"
)

// An error does not stop the undoing, which goes backwards, and no error is hidden.
func TestRunIf(t *testing.T) {
	func() (err error) {
		var steps undo.Stack
		defer steps.RunIf(&err)
		steps.Add("a", func() error { t.Error("undone on success"); return nil })
		return nil
	}()

	boom := errors.New("boom")
	var order []string
	err := func() (err error) {
		var steps undo.Stack
		defer steps.RunIf(&err)
		steps.Add("a", func() error { order = append(order, "a"); return nil })
		steps.Add("b", func() error { order = append(order, "b"); return errors.New("stuck") })
		steps.Add("c", func() error { order = append(order, "c"); return nil })
		return boom
	}()
	if want := []string{"c", "b", "a"}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
	if !errors.Is(err, boom) {
		t.Errorf("%v hides the first error", err)
	}
	if want := "boom\nundo b: stuck"; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
}

// A panic in a later step undoes the earlier ones, and is not hidden.
func TestPanicUndoes(t *testing.T) {
	var order []string
	defer func() {
		if p := recover(); p != "bug" {
			t.Errorf("the panic has become %v", p)
		}
		if want := []string{"b", "a"}; !slices.Equal(order, want) {
			t.Errorf("order %v, want %v", order, want)
		}
	}()
	_ = func() (err error) {
		var steps undo.Stack
		defer steps.RunIf(&err)
		steps.Add("a", func() error { order = append(order, "a"); return nil })
		steps.Add("b", func() error { order = append(order, "b"); return errors.New("stuck") })
		panic("bug")
	}()
}

// A bug in one step does not skip the others: among them may be a reservation.
func TestPanicInAStep(t *testing.T) {
	boom := errors.New("boom")
	for name, end := range map[string]func(){"an error": func() {}, "a panic": func() { panic("bug") }} {
		var order []string
		err := fault.Protect(func() (err error) {
			var steps undo.Stack
			defer steps.RunIf(&err)
			steps.Add("a", func() error { order = append(order, "a"); return nil })
			steps.Add("b", func() error { panic("stuck") })
			steps.Add("c", func() error { order = append(order, "c"); return nil })
			end()
			return boom
		})
		if want := []string{"c", "a"}; !slices.Equal(order, want) {
			t.Errorf("%s: order %v, want %v", name, order, want)
		}
		if want := "boom\nundo b: internal error: stuck"; name == "an error" && err.Error() != want {
			t.Errorf("got %q, want %q", err, want)
		}
		if p, ok := errors.AsType[*fault.Panic](err); !ok || len(p.Stack) == 0 {
			t.Errorf("%s: no stack in %v", name, err)
		}
	}
}

// Undoing continues after the client has given up.
func TestContextOutlivesItsParent(t *testing.T) {
	parent, cancel := context.WithCancel(t.Context())
	cancel()
	ctx, done := undo.Context(parent)
	defer done()
	if ctx.Err() != nil {
		t.Errorf("context is %v", ctx.Err())
	}
	if _, ok := ctx.Deadline(); !ok {
		t.Error("context has no deadline")
	}
}
