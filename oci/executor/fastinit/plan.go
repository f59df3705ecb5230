package fastinit

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// A step is an operation of the child; child.c defines the arguments of each.
type step uint64

const (
	_ step = iota
	stepTree
	stepJoin
	stepJoinPath
	stepUnshare
	stepWait
	stepRoot
	stepMount
	stepNode
	stepLink
	stepAttach
	stepReadonly
	stepMask
	stepRootReadonly
	stepDevNull
	stepKeyring
	stepMakeCwd
	stepProcfs
	stepFork
	stepProcess
)

// maxSlots bounds the mounts that the child keeps at once.
const maxSlots = 900 // of 1024 descriptors that a process usually may have

// A Plan has the steps of a child.
type Plan struct {
	// JoinsEarly is set if the child waits twice: until it is in its cgroups, and until
	// everything is ready for its program.
	JoinsEarly bool

	newPID bool // it is the first process of a PID namespace
	forks  int  // the step after which it continues as another process, in an existing PID namespace; 0 = none

	data  []byte
	what  []string // describes each step
	slots uint64
	args  []string // of the program
	cwd   string
}

// add appends a step with its arguments: int, uint64, string, []string or []byte. what begins
// its errors.
func (p *Plan) add(s step, what string, args ...any) {
	p.what = append(p.what, what)
	p.number(uint64(s))
	for _, a := range args {
		switch a := a.(type) {
		case int:
			p.number(uint64(a))
		case uint64:
			p.number(a)
		case bool:
			n := uint64(0)
			if a {
				n = 1
			}
			p.number(n)
		case string:
			p.bytes(append([]byte(a), 0))
		case []byte:
			p.bytes(a)
		case []string:
			p.number(uint64(len(a)))
			for _, s := range a {
				p.bytes(append([]byte(s), 0))
			}
		default:
			panic(fmt.Sprintf("step %d: argument %T", s, a))
		}
	}
}

func (p *Plan) number(n uint64) { p.data = binary.NativeEndian.AppendUint64(p.data, n) }

func (p *Plan) bytes(b []byte) {
	p.number(uint64(len(b)))
	p.data = append(p.data, b...)
	for len(p.data)%8 != 0 {
		p.data = append(p.data, 0)
	}
}

// slot returns a slot in which the child keeps a mount.
func (p *Plan) slot() (uint64, error) {
	if p.slots == maxSlots {
		return 0, ErrUnsupported
	}
	p.slots++
	return p.slots - 1, nil
}

// A report is the child's message about a step; child.c defines its form.
type report struct {
	kind, step, detail uint64
	errno              int64
}

const reportSize = 32

func parse(b []byte) report {
	n := binary.NativeEndian
	return report{n.Uint64(b), n.Uint64(b[8:]), n.Uint64(b[16:]), int64(n.Uint64(b[24:]))}
}

// failure converts a report into an error for users, in libcontainer's words where it has any.
func (p *Plan) failure(r report) error {
	what := fmt.Sprintf("step %d", r.step)
	if r.step < uint64(len(p.what)) {
		what = p.what[r.step]
	}
	errno := unix.Errno(r.errno)
	program := ""
	if len(p.args) > 0 {
		program = p.args[0]
	}
	switch r.detail {
	case 1:
		return fmt.Errorf("%s: it is inside /proc: %w", what, errno)
	case 2:
		return fmt.Errorf("%s: it is the root directory: %w", what, errno)
	case 3:
		return fmt.Errorf("%s: the container's /dev/null is invalid", what)
	case 4:
		return fmt.Errorf("exec: %q: stat %s: %w", program, program, errno)
	case 5:
		return fmt.Errorf("exec: %q: %w", program, errno)
	case 6:
		return fmt.Errorf("exec: %q: executable file not found in $PATH", program)
	case 7:
		return fmt.Errorf("exec: %q: cannot run executable found relative to current directory", program)
	case 8:
		return fmt.Errorf("chdir to cwd (%q) failed: %w", p.cwd, errno)
	case 9:
		return fmt.Errorf("current working directory %q is outside of the container's root", p.cwd)
	case 10:
		return fmt.Errorf("exec %s: %w", program, errno)
	}
	return fmt.Errorf("%s: %w", what, errno)
}
