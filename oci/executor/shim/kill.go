package shim

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/executor/poll"
)

// Kill ends a shim that does not answer, and returns once it is gone: every process that has the
// socket open on which it listens. connected is the ShimPID of an earlier Connect, 0 = none; it counts
// if that process executes the shim's program, since a PID may be wrong or have been reused.
//
// The listener's credentials (SO_PEERCRED) do not name the shim: they are of the process that called
// listen(2), usually the program's call "start", which has exited.
func (a Address) Kill(ctx context.Context, connected int) error {
	pids, err := listeners(a.Path)
	if connected > 1 && a.executes(connected) {
		pids = append(pids, connected)
	}
	for _, pid := range pids {
		if kerr := kill(ctx, pid); kerr != nil {
			err = errors.Join(err, fault.Unavailable.Errorf("%s: kill %d: %w", a, pid, kerr))
		}
	}
	return err
}

// Listener returns the process that listens at the address; 0 = none that can be found.
func (a Address) Listener() int {
	if pids, err := listeners(a.Path); err == nil && len(pids) > 0 {
		return pids[0]
	}
	return 0
}

// executes reports whether a process executes the shim's program.
func (a Address) executes(pid int) bool {
	program, err := os.Stat(a.Program)
	if err != nil {
		return false
	}
	exe, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pid))
	return err == nil && os.SameFile(program, exe)
}

// kill sends SIGKILL and waits until the process has ended.
func kill(ctx context.Context, pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return os.NewSyscallError("pidfd_open", err)
	}
	file, err := poll.File(fd, "pidfd")
	if err != nil {
		return err
	}
	defer file.Close()
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return os.NewSyscallError("pidfd_send_signal", err)
	}
	defer context.AfterFunc(ctx, func() { _ = file.SetReadDeadline(time.Unix(1, 0)) })()
	return poll.Ready(file, unix.POLLIN)
}

// listeners returns the processes that have the socket open that listens at path.
func listeners(path string) (pids []int, err error) {
	inodes, err := listening(path)
	if err != nil || len(inodes) == 0 {
		return nil, err
	}
	processes, err := filepath.Glob("/proc/[1-9]*")
	for _, dir := range processes {
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil && pid > 1 && pid != os.Getpid() && hasSocket(dir, inodes) {
			pids = append(pids, pid)
		}
	}
	return pids, err
}

// listening returns the inodes of the sockets that listen at path, as /proc/PID/fd shows them. More
// than one has had this path if its file was removed meanwhile.
func listening(path string) (inodes []string, err error) {
	const (
		flags     = 3
		inode     = 6
		accepting = "00010000" // __SO_ACCEPTCON
	)
	list, err := os.Open("/proc/net/unix")
	if err != nil {
		return nil, err
	}
	defer list.Close()
	for lines := bufio.NewScanner(list); lines.Scan(); {
		line, ok := strings.CutSuffix(lines.Text(), " "+path)
		if f := strings.Fields(line); ok && len(f) == inode+1 && f[flags] == accepting {
			inodes = append(inodes, "socket:["+f[inode]+"]")
		}
	}
	return inodes, nil
}

// hasSocket reports whether a process, by its directory in /proc, has one of the sockets open.
func hasSocket(dir string, inodes []string) bool {
	files, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return false // it has ended
	}
	for _, f := range files {
		if to, err := os.Readlink(filepath.Join(dir, "fd", f.Name())); err == nil && slices.Contains(inodes, to) {
			return true
		}
	}
	return false
}
