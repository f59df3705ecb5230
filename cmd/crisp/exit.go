package main

import (
	"errors"
	"fmt"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/internal/fault"
)

const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitInvalid     = 4
	exitTimeout     = 5
	exitUnreachable = 6

	// For exec, as in docker and podman:
	exitExecFailed     = 125 // we could not run the command
	exitNotExecutable  = 126
	exitCommandMissing = 127
)

const exitCodes = `
0 ok, 1 failure, 2 usage, 3 not found, 4 manifest rejected, 5 timed out,
6 runtime or agent not reachable. exec exits with the command's own code (128+n for signal n), or with 125
if it could not run it, 126 if it is not executable, 127 if it does not exist.
`

// An exitError ends crisp with its code; without text it prints nothing.
type exitError struct {
	code int
	text string
}

func (e *exitError) Error() string { return e.text }

func usageError(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Sprintf(format, args...)}
}

func exitCode(err error) int {
	if err == nil {
		return exitOK
	}
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.code
	}
	if _, ok := errors.AsType[manifest.Errors](err); ok {
		return exitInvalid
	}
	switch {
	case errors.Is(err, fault.NotFound):
		return exitNotFound
	case errors.Is(err, fault.Unavailable):
		return exitUnreachable
	}
	return exitFailure
}
