package undo_test

import (
	"context"
	"errors"
	"slices"
	"testing"

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
