package spec

import (
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// ExecProcess is the process of an exec in a container whose own process is p:
// the same user, capabilities, environment and limits, with other arguments.
func ExecProcess(p *specs.Process, args []string, tty bool) *specs.Process {
	return execProcess(p, args, tty)
}

// RawEnv returns p's environment as bytes if JSON cannot carry it, or nil if it
// can. CRI: KeyValue.value is bytes; it need not be UTF-8.
func RawEnv(p *specs.Process) [][]byte {
	return rawEnv(p)
}
