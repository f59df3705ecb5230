// Package lazy computes a value when it is first needed, as sync.OnceValues does, but does not keep
// a failure: a shortage of descriptors or memory passes, and a daemon runs for months.
package lazy

import "sync"

// Value returns a function that returns f's result, and calls f only until it succeeds. f is not
// called twice at once.
func Value[T any](f func() (T, error)) func() (T, error) {
	var mu sync.Mutex
	var kept *T
	return func() (T, error) {
		mu.Lock()
		defer mu.Unlock()
		if kept != nil {
			return *kept, nil
		}
		v, err := f()
		if err == nil {
			kept = &v
		}
		return v, err
	}
}
