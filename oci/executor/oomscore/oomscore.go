// Package oomscore starts programs with their own oom_score_adj.
//
// The executor has -1000, with which the kernel never OOM-kills a process
// (proc_pid_oom_score_adj(5)). Its children inherit that, and an OCI runtime passes it on: crun
// sets the score of a container's first process, earlier versions unless it is 0, and never that
// of an exec. A container with -1000 that is out of memory is not killed: it hangs.
//
// The score cannot be set from outside in time, as a program may have forked by then. So the
// executor executes itself, which sets the score and executes the program, all in C, before
// there is a Go runtime (oomscore.c).
package oomscore

// #cgo CFLAGS: -Wall -Wextra -Os
// #include "oomscore.h"
import "C"

import (
	"os/exec"
	"strconv"
)

// Program is the path of this program, as seen by itself.
const Program = "/proc/self/exe"

// Command returns the program and the arguments by which a process of this program becomes the
// program path with args, whose first is its name, with the score. If it may not set a score
// that low, it keeps ours. If path cannot be executed it exits with 127 and prints the reason to
// stderr.
func Command(score int, path string, args []string) (program string, all []string) {
	if len(args) == 0 {
		args = []string{path}
	}
	return Program, append([]string{"crisp-executor", C.OOMSCORE_ARG, strconv.Itoa(score), path}, args...)
}

// Set gives a command that was not started yet the score, using Command.
func Set(cmd *exec.Cmd, score int) *exec.Cmd {
	if cmd.Err == nil { // else Start returns it
		cmd.Path, cmd.Args = Command(score, cmd.Path, cmd.Args)
	}
	return cmd
}
