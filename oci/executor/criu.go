package executor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/procstat"
	"github.com/crisp-cri/crisp/internal/thread"
	"github.com/crisp-cri/crisp/oci/executor/oomscore"
)

// CRIU is a program that libcontainer runs, one process for each dump and each restore. Settings
// for which libcontainer has no option are in a configuration file, named by one of the
// container's labels. An annotation of that name would let its author choose what CRIU does as
// root, so it is dropped.

const criuLabel = "org.criu.config="

func isCRIULabel(label string) bool { return strings.HasPrefix(label, criuLabel) }

// criuOptions apply to every call. A pod's connections end with its address, so they are
// restored closed, and a dump does not touch them. How the network is locked meanwhile cannot be
// set here: CRIU up to 4.2 crashes if that option comes from such a file.
const criuOptions = `tcp-close
ghost-limit 268435456
`

// A criu is the CRIU of this host.
type criu struct {
	log    *slog.Logger
	config string      // the configuration file
	absent atomic.Bool // it was missing at startup or did not work

	// Of the program that was found to work:
	mu   sync.Mutex
	path string    // guarded by mu; "" = none yet
	mod  time.Time // guarded by mu
}

// ready returns nil if CRIU is installed and reports that it works on this kernel. It checks
// each version of the program once.
func (p *criu) ready(ctx context.Context) error {
	path, err := exec.LookPath("criu")
	if err != nil {
		return fault.WrongState.Errorf("CRIU is not installed: there is no program criu in %s", os.Getenv("PATH"))
	}
	info, err := os.Stat(path)
	if err != nil {
		return fault.WrongState.Errorf("CRIU: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.path == path && p.mod.Equal(info.ModTime()) {
		return nil
	}
	out, err := oomscore.Set(exec.CommandContext(ctx, path, "check"), 0).CombinedOutput()
	if err != nil {
		return fault.WrongState.Errorf("CRIU does not work on this host: criu check: %w: %s", err, lastLines(out, 3))
	}
	if err := os.WriteFile(p.config, []byte(criuOptions), 0o600); err != nil {
		return err
	}
	p.path, p.mod = path, info.ModTime()
	p.absent.Store(false) // it may have been installed since
	return nil
}

// look checks once whether containers can be checkpointed here.
func (p *criu) look() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := p.ready(ctx); err != nil {
		p.log.Debug("containers cannot be checkpointed", "err", err)
		p.absent.Store(true)
	}
}

// endingCRIU kills the CRIU that works in dir when ctx ends, until stop is called.
func endingCRIU(ctx context.Context, dir string) (stop func()) {
	over, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case <-over:
			return
		case <-ctx.Done():
		}
		// It may not be in its directory yet.
		for {
			killIn(dir)
			select {
			case <-over:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()
	return func() { close(over); <-stopped }
}

// endCRIU kills every CRIU that works in dir or below, waits until they have exited, and reports
// whether there were any. It finds them by their working directories, even those of a dead
// executor.
func endCRIU(dir string) (found bool, err error) {
	for range 500 {
		if killIn(dir) == 0 {
			return found, nil
		}
		found = true
		time.Sleep(10 * time.Millisecond)
	}
	return found, fault.Unavailable.Errorf("CRIU in %s does not end when killed", dir)
}

// killIn kills the processes named criu whose working directory is dir or below,
// and returns how many there were.
func killIn(dir string) (n int) {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil || !isCRIUIn(pid, dir) {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		if isCRIUIn(pid, dir) { // still the same process
			n++
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		}
		unix.Close(fd)
	}
	return n
}

// isCRIUIn reports whether a process is alive, is named criu and works in dir or below.
func isCRIUIn(pid int, dir string) bool {
	cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
	if err != nil || cwd != dir && !strings.HasPrefix(cwd, dir+"/") {
		return false
	}
	stat, err := procstat.Read(pid)
	return err == nil && stat.Name == "criu" && stat.State != 'Z'
}

// criuUnlock undoes what CRIU did with iptables-restore.
const criuUnlock = `*filter
:CRIU - [0:0]
-D INPUT -j CRIU
-D OUTPUT -j CRIU
-F CRIU
-X CRIU
COMMIT
`

// unlockTime bounds each program that unlocks the network. They wait for one another on a lock
// file that a process of the host may hold: iptables(8), --wait.
const unlockTime = 10 * time.Second

// unlock removes what a killed CRIU may have left in the network namespace of the container's
// init: rules that drop all packets, in iptables or nftables. It is no error if there are none.
// Each program that it runs may take bound.
func unlock(init *child, bound time.Duration) error {
	call := func(stdin, name string, args ...string) ([]byte, error) {
		ctx, cancel := context.WithTimeout(context.Background(), bound)
		defer cancel()
		cmd := oomscore.Set(exec.CommandContext(ctx, name, args...), 0)
		cmd.Stdin, cmd.WaitDelay = strings.NewReader(stdin), time.Second
		out, err := cmd.CombinedOutput()
		if ctx.Err() != nil {
			err = fmt.Errorf("%s took too long: %w", name, ctx.Err())
		}
		return out, err
	}
	return thread.Run(func() error {
		ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", init.pid))
		if err != nil {
			return nil // it has ended
		}
		defer ns.Close()
		if !init.exists() {
			return nil // and ns may be another process's
		}
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("setns", err)
		}
		var errs []error
		for _, iptables := range []string{"iptables", "ip6tables"} {
			switch out, err := call("", iptables, "-n", "-L", "CRIU"); {
			case errors.Is(err, context.DeadlineExceeded):
				errs = append(errs, fmt.Errorf("look for locks of the network: %w: %s", err, lastLines(out, 1)))
				continue
			case err != nil:
				continue // no such rules
			}
			if out, err := call(criuUnlock, iptables+"-restore", "--noflush"); err != nil {
				errs = append(errs, fmt.Errorf("unlock the network: %w: %s", err, lastLines(out, 1)))
			}
		}
		// criu: nftables_get_table
		_, _ = call("", "nft", "delete", "table", "inet", "CRIU-"+strconv.Itoa(init.pid))
		return errors.Join(errs...)
	})
}

// criuFailure returns the error of a failed CRIU, with the errors at the end of its log.
func criuFailure(ctx context.Context, what, log string, err error) error {
	if ctx.Err() != nil {
		return fault.Unavailable.Errorf("%s was given up: %w", what, ctx.Err())
	}
	if said := complaints(log); said != "" {
		kind := fault.Internal
		if strings.Contains(said, "No space left on device") { // strerror(ENOSPC)
			kind = fault.Unavailable // it can succeed once there is room
		}
		return kind.Errorf("%s: %w: %s (%s)", what, err, said, log)
	}
	return fault.Internal.Errorf("%s: %w", what, err)
}

// maxComplaints is the number of lines of CRIU's log in an error.
const maxComplaints = 5

// complaints returns the last errors in CRIU's log, or its last lines if it has none.
func complaints(log string) string {
	f, err := os.Open(log)
	if err != nil {
		return ""
	}
	defer f.Close()
	var bad, all []string
	keep := func(list []string, line string) []string {
		if list = append(list, line); len(list) > maxComplaints {
			list = list[1:]
		}
		return list
	}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		// "(00.012345)     42: Error (criu/x.c:1): text"
		line := strings.TrimSpace(lines.Text())
		all = keep(all, line)
		if strings.Contains(line, "Error (") {
			bad = keep(bad, line)
		}
	}
	if len(bad) == 0 {
		bad = all
	}
	return strings.Join(bad, "; ")
}

func lastLines(out []byte, n int) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "; ")
}
