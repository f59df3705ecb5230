// Package oomscore starts programs with an oom_score_adj of their own.
//
// The executor has -1000, with which the kernel kills a process for want of memory in no
// case (proc_pid_oom_score_adj(5)). What it forks inherits that, and an OCI runtime passes it
// on: crun sets the score of a container's first process, earlier versions unless it is 0, and
// never that of an exec. A container with -1000 that is out of memory is not killed: it stands
// still.
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

// Program is the path of this program, for itself.
const Program = "/proc/self/exe"

// Command returns the program and the arguments by which a process of this program becomes
// the program path with args, whose first is its name, and has the score. Where it may not
// have a score as low, it keeps ours. If path cannot be executed it ends with 127 and says
// why on stderr.
func Command(score int, path string, args []string) (program string, all []string) {
	if len(args) == 0 {
		args = []string{path}
	}
	return Program, append([]string{"crisp-executor", C.OOMSCORE_ARG, strconv.Itoa(score), path}, args...)
}

// Set gives a command that was not started yet the score, by Command.
func Set(cmd *exec.Cmd, score int) *exec.Cmd {
	if cmd.Err == nil { // else Start returns it
		cmd.Path, cmd.Args = Command(score, cmd.Path, cmd.Args)
	}
	return cmd
}
