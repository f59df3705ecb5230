package runtime

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/procstat"
	"github.com/crisp-cri/crisp/oci/executor/limits"
	"github.com/crisp-cri/crisp/oci/executor/poll"
	"github.com/crisp-cri/crisp/oci/executor/proc"
	"github.com/crisp-cri/crisp/oci/executor/stdio"
	"github.com/crisp-cri/crisp/oci/wire"
)

// newProcess converts a process for libcontainer. env, if not nil, replaces p.Env.
func newProcess(p *specs.Process, env [][]byte) (*libcontainer.Process, error) {
	if len(p.Args) == 0 {
		return nil, fault.Invalid.Errorf("process without arguments")
	}
	lp := &libcontainer.Process{
		Args:            p.Args,
		UID:             int(p.User.UID),
		GID:             int(p.User.GID),
		Cwd:             p.Cwd,
		Label:           p.SelinuxLabel,
		NoNewPrivileges: &p.NoNewPrivileges,
		AppArmorProfile: p.ApparmorProfile,
		Scheduler:       p.Scheduler,
		IOPriority:      p.IOPriority,
		// Otherwise the child writes some twenty lines that are not read.
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
		n, ok := limits.Rlimits[r.Type]
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
	list := p.Env
	if env != nil {
		list = make([]string, len(env))
		for i, kv := range env {
			list[i] = string(kv)
		}
	}
	lp.Env, err = environment(list)
	return lp, err
}

func connect(p *Plan) (*stdio.Ends, error) {
	ends, err := stdio.Connect(p.TTY, p.Stdin, p.Silent)
	switch {
	case err != nil:
		return nil, err
	case p.TTY:
		p.process.ConsoleSocket = ends.Theirs[0]
	default:
		p.process.Stdin, p.process.Stdout, p.process.Stderr = ends.Theirs[0], ends.Theirs[1], ends.Theirs[2]
	}
	return ends, nil
}

// OwnNull gives a process a /dev/null of its own as stdin, if it would get the host's.
func ownNull(p *libcontainer.Process, ends *stdio.Ends) {
	if ends.OwnNull() {
		p.Stdin = ends.Theirs[0]
	}
}

// environment returns the last variable of each name. HOME is never missing or empty: libcontainer's
// child would look it up in the passwd file of the image, with more rights than the container's.
// crispd has looked it up, in the image.
func environment(list []string) ([]string, error) {
	seen := make(map[string]bool, len(list))
	env, home := make([]string, 0, len(list)+1), ""
	for _, kv := range slices.Backward(list) {
		name, value, ok := strings.Cut(kv, "=")
		switch { // in libcontainer's words
		case !ok:
			return nil, fault.Invalid.Errorf("invalid environment variable: missing '='")
		case name == "":
			return nil, fault.Invalid.Errorf("invalid environment variable: name cannot be empty")
		case strings.ContainsRune(kv, 0):
			return nil, fault.Invalid.Errorf("invalid environment variable %q: contains nul byte (\\x00)", name)
		case seen[name]:
			continue
		}
		seen[name] = true
		if name == "HOME" {
			if home = value; home == "" {
				continue
			}
		}
		env = append(env, kv)
	}
	slices.Reverse(env)
	if home == "" {
		env = append(env, "HOME=/")
	}
	return env, nil
}

// carry prepares a process for libcontainer or an engine, which are given its environment as JSON, and
// that can carry only UTF-8: see bounce for other bytes. The fast init takes any. Close closes the
// ExtraFiles.
func carry(p *libcontainer.Process) error {
	var raw []string
	env := p.Env
	p.Env = nil
	for _, kv := range env {
		if utf8.ValidString(kv) {
			p.Env = append(p.Env, kv)
			continue
		}
		raw = append(raw, kv)
		if strings.HasPrefix(kv, "HOME=") {
			p.Env = append(p.Env, "HOME=/") // or it would be missing, see environment
		}
	}
	if len(raw) == 0 {
		return nil
	}
	return bounce(p, raw)
}

// giveStdio makes the root of a process's user namespace the owner of the process's pipes.
// Otherwise no process in there could open them by their names, such as /dev/stdout; libcontainer's
// init passes them on to the process's user, which requires that.
func giveStdio(p *libcontainer.Process, config *configs.Config) error {
	if !config.Namespaces.Contains(configs.NEWUSER) {
		return nil
	}
	uid, err := config.HostRootUID()
	if err != nil {
		return err
	}
	gid, err := config.HostRootGID()
	if err != nil {
		return err
	}
	for _, end := range []any{p.Stdin, p.Stdout, p.Stderr} {
		f, ok := end.(*os.File)
		if !ok || f == nil {
			continue
		}
		err := poll.WithFD(f, func(fd int) error {
			var st unix.Stat_t
			if err := unix.Fstat(fd, &st); err != nil {
				return err
			}
			if st.Mode&unix.S_IFMT != unix.S_IFIFO {
				return nil // the host's /dev/null
			}
			return unix.Fchown(fd, uid, gid)
		})
		if err != nil && !errors.Is(err, os.ErrClosed) {
			return fmt.Errorf("give %s to the user namespace: %w", f.Name(), err)
		}
	}
	return nil
}

// An environment need not be UTF-8, but libcontainer and engines pass it on as JSON, which must
// be: other bytes would become U+FFFD. So variables that JSON cannot carry go into a memfd, and
// they execute this program again, which adds them to its environment and executes the
// real one. It costs such a container a millisecond, and others nothing. This program must be
// linked statically, as it is executed in the container's root.

// BounceArg is the first argument of this program for that; the number of the memfd and the
// command follow.
const BounceArg = "bounce"

// bounce passes p the variables in raw too.
func bounce(p *libcontainer.Process, raw []string) error {
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	if dynamic(self) {
		self.Close()
		return fault.Invalid.Errorf("environment variable is not UTF-8: needs an executor that is linked statically")
	}
	fd, err := unix.MemfdCreate("environment", unix.MFD_CLOEXEC)
	if err != nil {
		self.Close()
		return os.NewSyscallError("memfd_create", err)
	}
	env := os.NewFile(uintptr(fd), "environment")
	p.ExtraFiles = []*os.File{self, env} // become 3 and 4
	if _, err := env.WriteString(strings.Join(raw, "\x00")); err != nil {
		wire.CloseAll(p.ExtraFiles)
		return err
	}
	p.Args = append([]string{"/proc/self/fd/3", BounceArg, "4"}, p.Args...)
	return nil
}

// dynamic reports whether a program needs an interpreter, which a container's root is unlikely
// to have.
func dynamic(f *os.File) bool {
	program, err := elf.NewFile(f)
	return err != nil || slices.ContainsFunc(program.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}

// Bounce is the other half, in the container: args are those after BounceArg. It does not
// return; if the program cannot be executed the exit status is 127, as in a shell.
func Bounce(args []string) {
	err := rebound(args)
	fmt.Fprintln(os.Stderr, err)
	os.Exit(127)
}

func rebound(args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("%s: too few arguments", BounceArg)
	}
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(n), "environment")
	data, err := io.ReadAll(io.NewSectionReader(f, 0, math.MaxInt64))
	if err != nil {
		return err
	}
	for kv := range strings.SplitSeq(string(data), "\x00") {
		// Also replaces a HOME before it, and has the program found in PATH.
		name, value, _ := strings.Cut(kv, "=")
		if err := os.Setenv(name, value); err != nil {
			return fmt.Errorf("environment variable %q: %w", name, err)
		}
	}
	command := args[1:]
	name, err := exec.LookPath(command[0])
	if err != nil {
		return err
	}
	unix.CloseOnExec(3)
	unix.CloseOnExec(n)
	return fmt.Errorf("exec %s: %w", name, unix.Exec(name, command, os.Environ()))
}

// libcontainer saves a container's state only when its init is almost complete. An executor that
// is killed earlier leaves processes, and hooks that hang, in a cgroup that its successor would
// not know. So the cgroups are saved before anything enters them.

// unsavedFile, in libcontainer's directory of a container, holds an unsavedState.
const unsavedFile = "begun.json"

// An unsavedState says what may exist of a container before libcontainer saves its state.
type unsavedState struct {
	Cgroups map[string]string // by controller
}

// noteCgroups saves the future cgroups of a new container.
func (b *builtins) noteCgroups(lc *libcontainer.Container) error {
	paths, err := cgroupPaths(lc)
	if err != nil {
		return err
	}
	return atomicfile.WriteJSON(filepath.Join(b.root, lc.ID(), unsavedFile), unsavedState{paths})
}

// sweepUnsaved removes a container whose state libcontainer has not saved, with its processes. dir
// is libcontainer's directory of the container.
func sweepUnsaved(dir string) error {
	var b unsavedState
	if atomicfile.ReadJSON(filepath.Join(dir, unsavedFile), &b) == nil { // else it had not begun
		if err := proc.End(proc.InCgroup(b.Cgroups)); err != nil {
			return err
		}
		if err := cgroups.RemovePaths(maps.Clone(b.Cgroups)); err != nil {
			return fault.Unavailable.Errorf("remove cgroup of container %s: %w", filepath.Base(dir), err)
		}
	}
	return os.RemoveAll(dir)
}

// releaseInit makes libcontainer's init, which is ready, execute the container's program, by reading
// what it writes to the fifo. libcontainer's own way leaves a thread in open(2) for good if the
// process exits before it has opened its end.
func releaseInit(fifo string, pid int) error {
	pidfd, err := unix.PidfdOpen(pid, 0) // our child, and not reaped
	if err != nil {
		return fmt.Errorf("pidfd of process %d: %w", pid, err)
	}
	defer unix.Close(pidfd)
	f, err := unix.Open(fifo, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: fifo, Err: err}
	}
	defer unix.Close(f)
	// A fifo that was not opened for writing since we opened it is not hung up, fifo(7).
	ends := []unix.PollFd{{Fd: int32(f), Events: unix.POLLIN}, {Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(ends, -1); err == unix.EINTR {
			continue
		} else if err != nil {
			return os.NewSyscallError("poll", err)
		}
		if n, err := unix.Read(f, make([]byte, 16)); err == nil && n > 0 {
			return os.Remove(fifo) // tells libcontainer that it is running
		}
		if ends[0].Revents != 0 || ends[1].Revents != 0 {
			return fault.Internal.Errorf("container ended before its program was executed")
		}
	}
}

// initName is the name of libcontainer's child until it executes the container's program, which may
// have the same.
const initName = "runc:[2:INIT]"

// execPatience bounds how long a started container may take to execute its program; afterwards
// it counts as started. The wait is worth it, because a failure there (a script without its
// interpreter, a program for another machine) would otherwise only show as an exit code.
const execPatience = 2 * time.Second

// AwaitExec returns once the process has executed its program. If that fails, the process has
// written the reason to its stderr, and has exited.
func AwaitExec(pid int, ends *stdio.Ends) error {
	pause := 100 * time.Microsecond
	for deadline := time.Now().Add(execPatience); time.Now().Before(deadline); pause = min(5*pause/4, 2*time.Millisecond) {
		stat, err := procstat.Read(pid)
		if err != nil || stat.Name != initName || !stat.Forked() {
			return nil // has executed it; or has gone, for its waiter to see
		}
		if stat.Ended() {
			return fault.Internal.Errorf("%s", ends.Complaint())
		}
		time.Sleep(pause)
	}
	return nil
}
