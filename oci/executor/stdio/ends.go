package stdio

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/opencontainers/selinux/go-selinux"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/oci/executor/poll"
	"github.com/crisp-cri/crisp/oci/wire"
)

// Ends are the stdio descriptors of a process about to start: both ends of its pipes, or
// the socket on which its terminal will be sent.
type Ends struct {
	Theirs, Ours [3]*os.File
	Console      *os.File // our end; the other is in theirs[0]
	PTY          *os.File
}

// Connect creates the stdio of a process; all of a silent one's is /dev/null.
func Connect(tty, stdin, silent bool) (*Ends, error) {
	ends := &Ends{}
	if silent {
		null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		ends.Theirs = [3]*os.File{null, null, null}
		return ends, err
	}
	if tty {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, os.NewSyscallError("socketpair", err)
		}
		ends.Console, ends.Theirs[0] = os.NewFile(uintptr(fds[0]), "console"), os.NewFile(uintptr(fds[1]), "console")
		return ends, nil
	}
	var err error
	ends.Theirs, ends.Ours, err = pipes(stdin)
	return ends, err
}

// OwnNull replaces the host's /dev/null that is the stdin of an exec by one of its own, and reports
// whether it did; inits get the container's. Where we
// cannot make nodes, the host's are not ours either. SELinux protects the host's, and would not let
// a program have another node without its label.
func (ends *Ends) OwnNull() bool {
	if selinux.GetEnabled() || ends.Theirs[0] == nil || ends.Ours[0] != nil || ends.Console != nil {
		return false
	}
	f, err := openNull()
	if err == nil {
		ends.Theirs[0].Close()
		ends.Theirs[0] = f
	}
	return err == nil
}

// SetSize sets the size of the terminal, if there is one.
func (ends *Ends) SetSize(width, height uint16) error {
	if ends.PTY == nil {
		return nil
	}
	return resizeTerminal(ends.PTY, width, height)
}

// Receive receives the terminal that the started process has sent.
func (ends *Ends) Receive() error {
	if ends.Console == nil {
		return nil
	}
	defer ends.Console.Close()
	fd, err := poll.Receive(int(ends.Console.Fd()), unix.MSG_DONTWAIT)
	if err != nil {
		return fmt.Errorf("receive terminal: %w", err)
	}
	ends.PTY, err = poll.File(fd, wire.FDPTY)
	return err
}

// Refuse closes the terminal of an attempt that failed, if it was sent: there will be another.
func (ends *Ends) Refuse() {
	for ends.Console != nil {
		fd, err := poll.Receive(int(ends.Console.Fd()), unix.MSG_DONTWAIT)
		if err != nil {
			return
		}
		unix.Close(fd)
	}
}

// OfChild returns the stdio that a child of ours starts with: with a terminal, the socket.
func (ends *Ends) OfChild() [3]*os.File {
	if ends.Console != nil {
		return [3]*os.File{ends.Theirs[0], ends.Theirs[0], ends.Theirs[0]}
	}
	return ends.Theirs
}

// CloseTheirs closes the ends that the process has copies of.
func (ends *Ends) CloseTheirs() { wire.CloseAll(ends.Theirs[:]) }

func (ends *Ends) Close() error {
	wire.CloseAll(ends.Theirs[:])
	wire.CloseAll(ends.Ours[:])
	wire.CloseAll([]*os.File{ends.Console, ends.PTY})
	return nil
}

// Complaint reads what libcontainer's child wrote before it gave up.
func (ends *Ends) Complaint() string {
	f := ends.Ours[2]
	if f == nil {
		f = ends.PTY
	}
	text := "container ended before its program was executed"
	if f == nil {
		return text
	}
	buf := make([]byte, 1024)
	poll.WithFD(f, func(fd int) error {
		if n, err := unix.Read(fd, buf); err == nil && n > 0 {
			text = strings.TrimSpace(string(buf[:n]))
		}
		return nil
	})
	return text
}

// Passed returns the ends that the caller gets.
func (ends *Ends) Passed() []*os.File {
	return slices.DeleteFunc(append(ends.Ours[:], ends.PTY), func(f *os.File) bool { return f == nil })
}
