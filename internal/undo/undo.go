// Package undo rolls back work of several steps. Each step declares on the spot how to undo it;
// if the whole fails, the undo functions run in reverse order.
//
//	func create() (err error) {
//		var steps undo.Stack
//		defer steps.RunIf(&err)
//
//		if err := os.Mkdir(dir, 0o700); err != nil {
//			return err
//		}
//		steps.Add("directory", func() error { return os.RemoveAll(dir) })
//		...
//	}
//
// A step's function must not depend on the caller's context, which has usually
// expired by the time it runs: AddContext gives it one from Context.
package undo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
)

// Timeout bounds a context made by Context.
const Timeout = 30 * time.Second

// A Stack is a list of steps to undo. The zero Stack is empty and ready for use.
// It is not safe for concurrent use.
type Stack struct {
	steps []step
}

type step struct {
	what string
	undo func() error
}

// Add records how to undo the step just done. what names the step in the error of a failed undo.
func (s *Stack) Add(what string, undo func() error) {
	s.steps = append(s.steps, step{what, undo})
}

// AddContext is Add for what needs a context: it gets Context(ctx).
func (s *Stack) AddContext(ctx context.Context, what string, undo func(context.Context) error) {
	s.Add(what, func() error {
		ctx, cancel := Context(ctx)
		defer cancel()
		return undo(ctx)
	})
}

// RunIf undoes all steps, last first, if *err is not nil. Each step is tried
// even if the one before it failed or panicked; what could not be undone is joined to *err.
// It must be deferred itself: a panic that passes undoes the steps too, and continues.
func (s *Stack) RunIf(err *error) {
	if p := recover(); p != nil {
		_ = s.Run() // the panic is the news
		panic(p)
	}
	if *err == nil {
		return
	}
	*err = errors.Join(*err, s.Run())
}

// Run undoes all steps, last first, and empties the Stack.
func (s *Stack) Run() error {
	var errs []error
	for i := len(s.steps) - 1; i >= 0; i-- {
		if err := fault.Protect(s.steps[i].undo); err != nil {
			errs = append(errs, fmt.Errorf("undo %s: %w", s.steps[i].what, err))
		}
	}
	s.steps = nil
	return errors.Join(errs...)
}

// Context returns a context for undoing: it carries the values of ctx (the log
// attributes), but neither its cancellation nor its deadline.
func Context(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), Timeout)
}
