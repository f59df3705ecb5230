package executor

import (
	"log/slog"
	"runtime/debug"
)

// maxPanics bounds how often one container's goroutine is restarted.
const maxPanics = 10

// insist calls f, and again when it panics, up to maxPanics times: a container's output, or its
// exit, must not end the parent of all the others. The work in progress is lost; f must release
// its locks and leave the gate by defer. insist reports whether f finally returned.
func insist(log *slog.Logger, what, container string, f func()) bool {
	for range maxPanics {
		if returns(log, what, container, f) {
			return true
		}
	}
	return false
}

func returns(log *slog.Logger, what, container string, f func()) (ok bool) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("work for a container panicked", "work", what, "container", container, "err", p, "stack", string(debug.Stack()))
		}
	}()
	f()
	return true
}
