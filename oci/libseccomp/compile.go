// Package seccomp replaces libseccomp's Go binding in runc's libcontainer, by a "replace" in
// go.mod: the filter of a seccomp profile is compiled once, and not by each process that loads
// it, which takes libseccomp 8 to 15 ms.
//
//	executor                                   container's first process, exec
//	Compile(runc's InitSeccomp(profile))       runc's InitSeccomp(profile with the rule)
//	  runc adds every rule to libseccomp         runc asks for the rule's number: given
//	  runc exports the program: kept             runc adds every rule: no effect
//	  runc gives up, nothing is loaded           runc exports the program: the given one
//	Rule(program)                                runc completes, loads and reports it
//
// So only runc and libseccomp define what a profile means, in both processes: the actions,
// flags, the ENOSYS of system calls that a profile does not know, and the descriptor of a filter
// that notifies. The program travels as the name of a rule of the profile, because the profile
// is runc's only input. Without that rule, or with one that cannot be parsed, libseccomp
// compiles as usual; so does a runc without this package, to which the name is not a system
// call.
package seccomp

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/seccomp/libseccomp-golang/upstream"
)

// rulePrefix begins the name of a rule that is a program in base64.
const rulePrefix = "crisp-program:"

const (
	instruction = 8    // bytes: struct sock_filter
	maxLength   = 4096 // instructions: BPF_MAXINSNS
)

// given is the program passed to this process, nil if none; a process has one profile.
var given []byte

// compiling is Compile's current work; guarded by compilers.
var (
	compilers sync.Mutex
	compiling *compilation
)

type compilation struct {
	program []byte
	filters []*seccomp.ScmpFilter
}

var errCompiled = errors.New("filter is compiled, and must not be loaded")

// Compile returns the program of the filter that load makes. load exports the program and gets
// an error, so that it cannot continue and load it.
func Compile(load func() error) ([]byte, error) {
	compilers.Lock()
	defer compilers.Unlock()
	c := &compilation{}
	compiling = c
	defer func() {
		compiling = nil
		for _, f := range c.filters {
			f.Release()
		}
		trim()
	}()
	switch err := load(); {
	case err == nil:
		return nil, errors.New("filter was loaded")
	case !errors.Is(err, errCompiled):
		return nil, err
	}
	return c.program, nil
}

func (c *compilation) export(f *seccomp.ScmpFilter) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	exported := make(chan error, 1)
	go func() {
		defer w.Close()
		exported <- f.ExportBPF(w)
	}()
	program, err := io.ReadAll(r)
	if err := errors.Join(<-exported, err); err != nil {
		return err
	}
	if err := check(program); err != nil {
		return err
	}
	c.program = program
	return errCompiled
}

// Rule returns the name of a rule that passes a program to the process that loads the profile.
// It has to come first, and its action must differ from the profile's default: runc omits rules
// without effect.
func Rule(program []byte) string {
	return rulePrefix + base64.StdEncoding.EncodeToString(program)
}

// IsRule reports whether a rule's name is one of Rule.
func IsRule(name string) bool { return strings.HasPrefix(name, rulePrefix) }

// Program returns the program in a rule's name.
func Program(rule string) ([]byte, error) {
	text, ok := strings.CutPrefix(rule, rulePrefix)
	if !ok {
		return nil, errors.New("rule has no program")
	}
	program, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("program in a rule: %w", err)
	}
	return program, check(program)
}

func check(program []byte) error {
	if n := len(program); n == 0 || n%instruction != 0 || n > maxLength*instruction {
		return fmt.Errorf("program of %d bytes is not a valid BPF program", n)
	}
	return nil
}

// GetSyscallFromName returns the number of a system call. For one of Rule's names it takes over
// the program, which replaces all rules.
func GetSyscallFromName(name string) (ScmpSyscall, error) {
	if IsRule(name) && compiling == nil {
		program, err := Program(name)
		if err != nil {
			return 0, err
		}
		given = program
	}
	if given != nil {
		return 0, nil // without effect, see AddRule
	}
	return seccomp.GetSyscallFromName(name)
}
