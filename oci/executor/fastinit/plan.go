package fastinit

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"strings"
	"sync"

	"github.com/moby/sys/capability"
	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"
)

// A step is an operation of the child; child.c defines the arguments of each.
type step uint64

const (
	stepEnd step = iota
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
	stepProc
	stepFork
	stepTerminal
	stepProcess
)

// maxSlots bounds the mounts that the child keeps at once.
const maxSlots = 900 // of 1024 descriptors that a process usually may have

// A Plan has the steps of a child.
type Plan struct {
	// NeedsCgroups is set if the child waits until Setting.Cgroups is there, before all else.
	NeedsCgroups bool
	// JoinsEarly is set if the child waits twice: until it is in its cgroups, which its mounts of them
	// need, and until everything is ready for its program.
	JoinsEarly bool

	newPID bool // it is the first process of a PID namespace
	mapped bool // it joins a user namespace
	forks  int  // the step after which it continues as another process, in an existing PID namespace; 0 = none

	data  []byte
	what  []string // describes each step
	slots uint64
	nul   bool     // a string has a NUL byte, at which the child would cut it off
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
			p.string(a)
		case []byte:
			p.bytes(a)
		case []string:
			p.number(uint64(len(a)))
			for _, s := range a {
				p.string(s)
			}
		default:
			panic(fmt.Sprintf("step %d: argument %T", s, a))
		}
	}
}

func (p *Plan) number(n uint64) { p.data = binary.NativeEndian.AppendUint64(p.data, n) }

func (p *Plan) string(s string) {
	p.nul = p.nul || strings.ContainsRune(s, 0)
	p.bytes(append([]byte(s), 0))
}

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

// A ProgramError is the failure of a child that every init would have: of its program or its working
// directory. Also, the program may have begun to run.
type ProgramError struct{ error }

func (e ProgramError) Unwrap() error { return e.error }

// failure converts a report into an error for users.
func (p *Plan) failure(r report) error {
	err := p.describe(r)
	if r.detail >= firstOfProgram {
		return ProgramError{err}
	}
	return err
}

// firstOfProgram is the first detail that is about the program or its working directory.
const firstOfProgram = 4

// describe describes a report in libcontainer's words, where it has any.
func (p *Plan) describe(r report) error {
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

// A Process describes the program that a child executes.
type Process struct {
	Args, Env []string // Args has the program; Env has each name once
	Cwd       string   // "" = /
	UID, GID  int
	Groups    []int

	KeepsGroups bool // Groups cannot be set: it keeps the executor's

	Capabilities    *configs.Capabilities // nil = none; libcontainer would keep the executor's then
	NoNewPrivileges bool
	AppArmor        string  // profile; "" = none
	Label           string  // SELinux; "" = none
	Seccomp         *Filter // nil = none

	Terminal      bool // it gets a terminal: its stdin is the socket for the end that controls that
	Width, Height uint16
}

// A Filter is a seccomp program in the kernel's form.
type Filter struct {
	Program []byte // struct sock_filter, seccomp(2)
	Flags   uint64 // of SECCOMP_SET_MODE_FILTER
}

// process appends the last step. For an exec, its caller is to see on its stderr, and by its exit
// status of 255, that the program cannot be executed, as with libcontainer.
func (p *Plan) process(q Process, exec bool) error {
	if q.Capabilities == nil {
		q.Capabilities = &configs.Capabilities{}
	}
	last, err := capability.LastCap()
	if err != nil {
		return err
	}
	filter := q.Seccomp
	if filter == nil {
		filter = &Filter{}
	}
	var attributes []string // what the host's procfs takes for the execve: a file, and its text
	if q.AppArmor != "" {
		attributes = append(attributes, "thread-self/attr/apparmor/exec", "exec "+q.AppArmor)
	}
	if q.Label != "" {
		attributes = append(attributes, "thread-self/attr/exec", q.Label)
	}
	var groups []byte
	for _, g := range q.Groups {
		groups = binary.NativeEndian.AppendUint32(groups, uint32(g))
	}
	c := q.Capabilities
	p.args, p.cwd = q.Args, q.Cwd
	p.add(stepProcess, "set up the process", q.UID, q.GID, groups,
		bits(c.Bounding), bits(c.Effective), bits(c.Permitted), bits(c.Inheritable), bits(c.Ambient),
		q.NoNewPrivileges, q.KeepsGroups, int(last), filter.Flags, filter.Program, exec, attributes, q.Cwd, q.Args, q.files(), q.Env)
	if p.nul {
		return ErrUnsupported // libcontainer refuses it
	}
	return nil
}

// proc begins the steps of a process that has an AppArmor profile or a label: they are set by the
// host's procfs, in which the container can have mounted nothing.
func (p *Plan) proc(q Process) {
	if q.AppArmor != "" || q.Label != "" {
		p.add(stepProc, "open the host's /proc")
	}
}

// terminal appends the step for a terminal, which is a container's /dev/console, too.
func (p *Plan) terminal(q Process, console bool) {
	if q.Terminal {
		p.add(stepTerminal, "set up a terminal", console, int(q.Width), int(q.Height))
	}
}

// keyring appends the step that joins the container's session keyring, which gets the process's label;
// search are the permissions to add.
func (p *Plan) keyring(id string, q Process, search int) {
	p.add(stepKeyring, "join session keyring", "_ses."+id, search, q.Label)
}

// files returns where the program may be if PATH says it, in the order of exec.LookPath.
func (q Process) files() (files []string) {
	for _, kv := range q.Env {
		if list, ok := strings.CutPrefix(kv, "PATH="); ok && !strings.Contains(q.Args[0], "/") {
			for _, dir := range filepath.SplitList(list) {
				files = append(files, filepath.Join(cmp.Or(dir, "."), q.Args[0]))
			}
		}
	}
	return files
}

// capabilities maps names to bits.
var capabilities = sync.OnceValue(func() map[string]uint64 {
	m := make(map[string]uint64)
	for _, c := range capability.ListKnown() {
		m["CAP_"+strings.ToUpper(c.String())] = 1 << c
	}
	return m
})

// bits returns a set of capabilities for capset(2). It skips unknown ones, like libcontainer.
func bits(names []string) (set uint64) {
	for _, n := range names {
		set |= capabilities()[n]
	}
	return set
}

// Exec plans a process in a running container, whose init must be passed to Start.
func Exec(config *configs.Config, q Process, id string) (*Plan, error) {
	switch {
	case config.RootlessEUID, config.Umask != nil, config.Personality != nil, config.MemoryPolicy != nil,
		config.IntelRdt != nil, config.Scheduler != nil, config.IOPriority != nil, config.ExecCPUAffinity != nil,
		len(config.TimeOffsets) > 0, !SeccompSupported(config.Seccomp):
		return nil, ErrUnsupported
	}
	p := &Plan{}
	flags := 0
	for _, ns := range config.Namespaces {
		flag, ok := flagOf[ns.Type]
		if !ok {
			return nil, ErrUnsupported
		}
		flags |= flag
		p.mapped = p.mapped || ns.Type == configs.NEWUSER
	}
	if flags&unix.CLONE_NEWNS == 0 {
		return nil, ErrUnsupported
	}
	p.proc(q)
	p.add(stepJoin, "join the container's namespaces", extraFD, flags, "")
	if flags&unix.CLONE_NEWPID != 0 {
		p.fork()
	}
	if !config.NoNewKeyring {
		p.keyring(id, q, 0)
	}
	p.terminal(q, false)
	p.add(stepWait, "wait for the executor")
	return p, p.process(q, true)
}
