// Package fault gives an error a kind, so that code far from the failure can decide what to do
// about it without parsing its text.
//
// A Kind is itself an error. Callers use errors.Is(err, fault.NotFound); the gRPC edge
// (server/interceptor.go) turns a kind into a status code.
package fault

import (
	"errors"
	"fmt"
	"runtime/debug"
)

// A Kind says what the caller can do about an error. The zero Kind is Internal: an unclassified
// error is our bug.
type Kind uint8

const (
	Internal    Kind = iota // nothing; look at the log
	Invalid                 // fix the request
	NotFound                // the object does not exist
	Exists                  // the name is taken
	WrongState              // the object is busy, or past that point
	Unavailable             // try again later
)

// kinds is in the order in which KindOf checks them.
var kinds = []Kind{Invalid, NotFound, Exists, WrongState, Unavailable}

// names are those of the kinds, in their order.
var names = [...]string{"internal", "invalid", "not found", "exists", "wrong state", "unavailable"}

// String returns the kind's name as used in logs and metrics.
func (k Kind) String() string { return names[k] }

// Error makes a Kind an error, so that it can be the target of errors.Is.
func (k Kind) Error() string { return k.String() }

// Errorf is fmt.Errorf for an error of kind k.
func (k Kind) Errorf(format string, args ...any) error {
	return &kinded{k, fmt.Errorf(format, args...)}
}

// KindOf returns the kind of err: the outermost in its chain, or Internal without one.
func KindOf(err error) Kind {
	var k *kinded
	if errors.As(err, &k) {
		return k.kind
	}
	for _, kind := range kinds {
		if errors.Is(err, kind) {
			return kind
		}
	}
	return Internal
}

// Optional drops err if it is of kind NotFound and optional, a field of Kubernetes, is true; nil
// means false.
func Optional(optional *bool, err error) error {
	if optional != nil && *optional && errors.Is(err, NotFound) {
		return nil
	}
	return err
}

type kinded struct {
	kind Kind
	err  error
}

func (e *kinded) Error() string        { return e.err.Error() }
func (e *kinded) Unwrap() error        { return e.err }
func (e *kinded) Is(target error) bool { return target == e.kind }

// A Panic is the error that Protect returns for a panic; its kind is Internal.
type Panic struct {
	Value any
	Stack []byte // of the goroutine that panicked, as debug.Stack has it; for the log
}

// Error omits the stack, which is not for clients.
func (p *Panic) Error() string { return fmt.Sprintf("internal error: %v", p.Value) }

// Protect runs work, and turns a panic into a *Panic: one request or image fails, not the
// daemon. It does not cover goroutines that work starts.
func Protect(work func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &Panic{p, debug.Stack()}
		}
	}()
	return work()
}
