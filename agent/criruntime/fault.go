package criruntime

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/crisp-cri/crisp/internal/fault"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// An Error is an action that failed, with the reason under which the kubelet
// shows the same.
type Error struct {
	reason string
	err    error
}

// Reason is one CamelCase word: the reason of a container's waiting state.
func (e *Error) Reason() string { return e.reason }
func (e *Error) Error() string  { return e.err.Error() }
func (e *Error) Unwrap() error  { return e.err }

// Reasoned gives an error the reason under which it is shown; nil stays nil.
func Reasoned(reason string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{reason, err}
}

// Fault gives an error of a CRI call its kind, and as text the sentence of the
// runtime alone.
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
		return fmt.Errorf("runtime did not answer in time: %s", s.Message())
	case codes.InvalidArgument:
		return fault.Invalid.Errorf("%s", s.Message())
	case codes.AlreadyExists:
		return fault.Exists.Errorf("%s", s.Message())
	case codes.FailedPrecondition:
		return fault.WrongState.Errorf("%s", s.Message())
	}
	return errors.New(s.Message())
}

// innermost takes gRPC's wrapping off the sentence of the dialler.
func innermost(text string) string {
	if i := strings.Index(text, "dial unix "); i >= 0 {
		return strings.Trim(text[i:], `"`)
	}
	return text
}

// reasonOf is the reason of an error that knows one, or "".
func reasonOf(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.reason
	}
	return ""
}

// unimplemented reports whether the runtime does not have the call. Some say so
// without the code for it.
func unimplemented(err error) bool {
	s, ok := status.FromError(err)
	return ok && (s.Code() == codes.Unimplemented || strings.Contains(s.Message(), "not implemented"))
}
