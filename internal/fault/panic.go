package fault

import (
	"fmt"
	"runtime/debug"
)

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
