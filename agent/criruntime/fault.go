package criruntime

import (
	"context"
	"errors"
	"strings"

	"github.com/crisp-cri/crisp/internal/fault"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// An Error is the error of an action that failed, with the kubelet's reason for it.
type Error struct {
	reason string
	err    error
}

// Reason returns one CamelCase word, for a container's waiting state.
func (e *Error) Reason() string { return e.reason }
func (e *Error) Error() string  { return e.err.Error() }
func (e *Error) Unwrap() error  { return e.err }

// Reasoned attaches the reason to show for an error; nil stays nil.
func Reasoned(reason string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{reason, err}
}

// Fault maps the status code of a CRI call's error to a fault kind, and its text to the
// runtime's message alone.
func Fault(err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	s, ok := status.FromError(err)
	if !ok {
		return err
	}
	switch s.Code() {
	case codes.NotFound:
		return fault.NotFound.Errorf("%s", s.Message())
	case codes.Unavailable:
		return fault.Unavailable.Errorf("runtime is not reachable: %s", innermost(s.Message()))
	case codes.Canceled:
		return context.Canceled
	case codes.DeadlineExceeded:
		return &lateError{s.Message()}
	case codes.InvalidArgument:
		return fault.Invalid.Errorf("%s", s.Message())
	case codes.AlreadyExists:
		return fault.Exists.Errorf("%s", s.Message())
	case codes.FailedPrecondition:
		return fault.WrongState.Errorf("%s", s.Message())
	}
	return errors.New(s.Message())
}

// A lateError says that the runtime did not answer in time. It is a context.DeadlineExceeded.
type lateError struct{ text string }

func (e *lateError) Error() string { return "runtime did not answer in time: " + e.text }
func (e *lateError) Unwrap() error { return context.DeadlineExceeded }

// innermost strips gRPC's wrapping from the dialler's error.
func innermost(text string) string {
	if i := strings.Index(text, "dial unix "); i >= 0 {
		return strings.Trim(text[i:], `"`)
	}
	return text
}

// reasonOf returns the reason of an error that has one, or "".
func reasonOf(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.reason
	}
	return ""
}

// unimplemented reports whether the runtime does not implement the call. Some runtimes say so
// with another code.
func unimplemented(err error) bool {
	s, ok := status.FromError(err)
	return ok && (s.Code() == codes.Unimplemented || strings.Contains(s.Message(), "not implemented"))
}
