package executor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
)

// A new program would run for the first time in place of the one that all containers depend on,
// with no way back. So it first runs beside it, to check that it understands the state it will
// get.

// CheckArg is the argument that makes the program only read an executor's state from stdin and
// report, by its exit status, whether it can resume from it.
const CheckArg = "--check-state"

// unknownFlag is the exit status of a program that is older than CheckArg (package flag).
const unknownFlag = 2

// checkTime bounds the check: the gate is shut meanwhile.
const checkTime = 5 * time.Second

// CheckState does what CheckArg promises and exits.
func CheckState() {
	if _, err := readSaved(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// readSaved decodes the previous executor's state.
func readSaved(r io.Reader) (*saved, error) {
	var s saved
	if err := json.NewDecoder(r).Decode(&s); err != nil {
		return nil, fmt.Errorf("state of the executor before: %w", err)
	}
	if s.Version > savedVersion {
		return nil, fault.WrongState.Errorf("state of the executor before has version %d: this one reads up to version %d", s.Version, savedVersion)
	}
	return &s, nil
}

// understands asks the program whether it can resume from the state.
func (x *Executor) understands(program *os.File, state []byte) error {
	defer x.reaper.expectChild()()
	ctx, cancel := context.WithTimeout(context.Background(), checkTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, fmt.Sprintf("/proc/self/fd/%d", program.Fd()), CheckArg)
	cmd.Args[0] = os.Args[0]
	cmd.Dir, cmd.Env, cmd.Stdin = "/", []string{"PATH=" + os.Getenv("PATH")}, bytes.NewReader(state)
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == unknownFlag {
		return nil // it is too old to answer
	}
	if err != nil {
		return fault.Invalid.Errorf("upgrade: the new program cannot carry on: %w: %s", err, strings.TrimSpace(lastLines(out, 3)))
	}
	return nil
}
