package executor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/selinux/go-selinux"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
)

// newProcess converts a process for libcontainer. env, if not nil, replaces p.Env. The caller
// closes the ExtraFiles once it has started.
func newProcess(p *specs.Process, env [][]byte) (*libcontainer.Process, error) {
	if len(p.Args) == 0 {
		return nil, fault.Invalid.Errorf("process without arguments")
	}
	lp := &libcontainer.Process{
		Args:            p.Args,
		Env:             p.Env,
		UID:             int(p.User.UID),
		GID:             int(p.User.GID),
		Cwd:             p.Cwd,
		Label:           p.SelinuxLabel,
		NoNewPrivileges: &p.NoNewPrivileges,
		AppArmorProfile: p.ApparmorProfile,
		Scheduler:       p.Scheduler,
		IOPriority:      p.IOPriority,
		// Otherwise the child writes some twenty lines that nobody reads.
		LogLevel: strconv.Itoa(int(logrus.WarnLevel)),
	}
	if p.ConsoleSize != nil {
		lp.ConsoleWidth, lp.ConsoleHeight = uint16(p.ConsoleSize.Width), uint16(p.ConsoleSize.Height)
	}
	if c := p.Capabilities; c != nil {
		lp.Capabilities = &configs.Capabilities{
			Bounding: c.Bounding, Effective: c.Effective, Inheritable: c.Inheritable,
			Permitted: c.Permitted, Ambient: c.Ambient,
		}
	}
	for _, gid := range p.User.AdditionalGids {
		lp.AdditionalGroups = append(lp.AdditionalGroups, int(gid))
	}
	for _, r := range p.Rlimits {
		n, ok := rlimits[r.Type]
		if !ok {
			return nil, fault.Invalid.Errorf("unknown rlimit %q", r.Type)
		}
		lp.Rlimits = append(lp.Rlimits, configs.Rlimit{Type: n, Hard: r.Hard, Soft: r.Soft})
	}
	affinity, err := configs.ConvertCPUAffinity(p.ExecCPUAffinity)
	if err != nil {
		return nil, fault.Invalid.Errorf("cpu affinity: %w", err)
	}
	lp.CPUAffinity = affinity
	if env != nil {
		if err := setEnv(lp, env); err != nil {
			return nil, err
		}
	}
	return lp, nil
}

// rlimits are the resources of getrlimit(2) by the runtime spec's names.
var rlimits = map[string]int{
	"RLIMIT_AS":         unix.RLIMIT_AS,
	"RLIMIT_CORE":       unix.RLIMIT_CORE,
	"RLIMIT_CPU":        unix.RLIMIT_CPU,
	"RLIMIT_DATA":       unix.RLIMIT_DATA,
	"RLIMIT_FSIZE":      unix.RLIMIT_FSIZE,
	"RLIMIT_LOCKS":      unix.RLIMIT_LOCKS,
	"RLIMIT_MEMLOCK":    unix.RLIMIT_MEMLOCK,
	"RLIMIT_MSGQUEUE":   unix.RLIMIT_MSGQUEUE,
	"RLIMIT_NICE":       unix.RLIMIT_NICE,
	"RLIMIT_NOFILE":     unix.RLIMIT_NOFILE,
	"RLIMIT_NPROC":      unix.RLIMIT_NPROC,
	"RLIMIT_RSS":        unix.RLIMIT_RSS,
	"RLIMIT_RTPRIO":     unix.RLIMIT_RTPRIO,
	"RLIMIT_RTTIME":     unix.RLIMIT_RTTIME,
	"RLIMIT_SIGPENDING": unix.RLIMIT_SIGPENDING,
	"RLIMIT_STACK":      unix.RLIMIT_STACK,
}

// stdioEnds are the stdio descriptors of a process about to start: both ends of its pipes, or
// the socket on which its terminal will be sent.
type stdioEnds struct {
	theirs, ours [3]*os.File
	console      *os.File // our end; the other is in theirs[0]
	pty          *os.File
}

// connect creates a process's stdio.
func connect(p *libcontainer.Process, s settings) (*stdioEnds, error) {
	ends := &stdioEnds{}
	if s.Silent {
		return ends, nil // os/exec turns nil into /dev/null
	}
	if s.TTY {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, os.NewSyscallError("socketpair", err)
		}
		ends.console, ends.theirs[0] = os.NewFile(uintptr(fds[0]), "console"), os.NewFile(uintptr(fds[1]), "console")
		p.ConsoleSocket = ends.theirs[0]
		return ends, nil
	}
	var err error
	if ends.theirs, ends.ours, err = pipes(s.Stdin); err != nil {
		return nil, err
	}
	p.Stdin, p.Stdout, p.Stderr = ends.theirs[0], ends.theirs[1], ends.theirs[2]
	return ends, nil
}

// ownNull replaces the host's /dev/null that is the stdin of an exec by one of its own; the init of
// a container gets the container's. Where we cannot make nodes, the host's are not ours either.
// SELinux protects the host's, and would not let a program have another node without its label.
func (ends *stdioEnds) ownNull(p *libcontainer.Process) {
	if selinux.GetEnabled() || ends.theirs[0] == nil || ends.ours[0] != nil || ends.console != nil {
		return
	}
	if f, err := openNull(); err == nil {
		ends.theirs[0].Close()
		ends.theirs[0], p.Stdin = f, f
	}
}

// receive receives the terminal that the started process has sent.
func (ends *stdioEnds) receive() error {
	if ends.console == nil {
		return nil
	}
	defer ends.console.Close()
	fd, err := receiveFD(int(ends.console.Fd()), unix.MSG_DONTWAIT)
	if err != nil {
		return fmt.Errorf("receive terminal: %w", err)
	}
	ends.pty, err = polled(fd, wire.FDPTY)
	return err
}

// closeTheirs closes the ends that the process has copies of.
func (ends *stdioEnds) closeTheirs() { wire.CloseAll(ends.theirs[:]) }

func (ends *stdioEnds) closeOurs() error {
	wire.CloseAll(ends.theirs[:])
	wire.CloseAll(ends.ours[:])
	wire.CloseAll([]*os.File{ends.console, ends.pty})
	return nil
}

// closeAfter closes all ends when a stuck attempt is over, which may still pass them on.
func (ends *stdioEnds) closeAfter(stuck *stuckError) {
	stuck.whenOver(func() { ends.closeOurs() })
}

// closeExtra closes the descriptors that a process was to get besides its stdio, after its start has
// ended with err: at once, or when a stuck attempt is over, which may still pass them on.
func closeExtra(p *libcontainer.Process, err error) {
	if stuck := new(stuckError); errors.As(err, &stuck) {
		stuck.whenOver(func() { wire.CloseAll(p.ExtraFiles) })
		return
	}
	wire.CloseAll(p.ExtraFiles)
}

// setEnv replaces the environment. libcontainer sends it to its child as JSON, which can carry
// only UTF-8: see trampoline.go for other bytes.
func setEnv(p *libcontainer.Process, env [][]byte) error {
	p.Env = make([]string, 0, len(env))
	var raw []string
	for i, kv := range env {
		name, _, _ := bytes.Cut(kv, []byte{'='})
		if slices.ContainsFunc(env[i+1:], func(later []byte) bool {
			return bytes.HasPrefix(later, name) && bytes.HasPrefix(later[len(name):], []byte{'='})
		}) {
			continue // the last one of a name counts, but the order is lost below
		}
		if utf8.Valid(kv) {
			p.Env = append(p.Env, string(kv))
		} else {
			raw = append(raw, string(kv))
		}
	}
	if len(raw) == 0 {
		return nil
	}
	return bounce(p, raw)
}
