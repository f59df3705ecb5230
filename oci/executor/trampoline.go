package executor

import (
	"debug/elf"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runc/libcontainer"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
)

// An environment need not be UTF-8, but libcontainer passes it to its child as JSON, which must
// be: other bytes would become U+FFFD. So variables that JSON cannot carry go into a memfd, and
// libcontainer executes this program again, which adds them to its environment and executes the
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
	var odd []string // no variables, but bytes that were asked for
	for kv := range strings.SplitSeq(string(data), "\x00") {
		// Also replaces the HOME that libcontainer has added, and has the program found in PATH.
		name, value, ok := strings.Cut(kv, "=")
		if name == "" || !ok {
			odd = append(odd, kv)
		} else if err := os.Setenv(name, value); err != nil {
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
	return fmt.Errorf("exec %s: %w", name, unix.Exec(name, command, append(os.Environ(), odd...)))
}
