package crix

import (
	"context"
	"errors"
	"fmt"

	"github.com/crisp-cri/crisp/internal/fault"
	"google.golang.org/grpc/status"
	criapierrors "k8s.io/cri-api/pkg/errors"
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

func reasoned(reason string, err error) error {
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
	if criapierrors.IsNotFound(err) {
		return fault.NotFound.Errorf("%s", s.Message())
	}
	switch s.Code().String() { // by name: the codes are the server's business
	case "Unavailable":
		return fault.Unavailable.Errorf("runtime is not reachable: %s", s.Message())
	case "Canceled":
		return context.Canceled
	case "DeadlineExceeded":
		return fmt.Errorf("runtime did not answer in time: %s", s.Message())
	case "InvalidArgument":
		return fault.Invalid.Errorf("%s", s.Message())
	case "AlreadyExists":
		return fault.Exists.Errorf("%s", s.Message())
	case "FailedPrecondition":
		return fault.WrongState.Errorf("%s", s.Message())
	}
	return errors.New(s.Message())
}
