package runtime

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	securejoin "github.com/cyphar/filepath-securejoin"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/thread"
	"github.com/crisp-cri/crisp/oci/executor/limits"
	"github.com/crisp-cri/crisp/oci/executor/oomscore"
	"github.com/crisp-cri/crisp/oci/executor/proc"
)

// CRIU is a program that libcontainer runs, one process for each dump and each restore. Settings
// for which libcontainer has no option are in a configuration file, named by one of the
// container's labels. An annotation of that name would let its author choose what CRIU does as
// root, so it is dropped.

const (
	criuAnnotation = "org.criu.config"
	criuLabel      = criuAnnotation + "="
)

// criuOptions apply to every call. A pod's connections end with its address, so they are
// restored closed, and a dump does not touch them. How the network is locked meanwhile cannot be
// set here: CRIU up to 4.2 crashes if that option comes from such a file.
const criuOptions = `tcp-close
ghost-limit 268435456
`

// CRIU is this host's.
type CRIU struct {
	log    *slog.Logger
	config string // the configuration file

	// Of the program that was found to work:
	mu   sync.Mutex
	path string    // guarded by mu; "" = none yet
	mod  time.Time // guarded by mu
}

// Ready returns nil if CRIU is installed and reports that it works on this kernel. It checks
// each version of the program once.
func (p *CRIU) Ready(ctx context.Context) error {
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
		return fault.WrongState.Errorf("CRIU does not work on this host: criu check: %w: %s", err, LastLines(out, 3))
	}
	if err := os.WriteFile(p.config, []byte(criuOptions), 0o600); err != nil {
		return err
	}
	p.path, p.mod = path, info.ModTime()
	return nil
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
			_, _ = proc.Program("criu", dir).Kill()
			select {
			case <-over:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()
	return func() { close(over); <-stopped }
}

// EndCRIU kills every CRIU that works in dir or below, waits until they have exited, and reports
// whether there were any. It finds them by their working directories, even those of a dead
// executor.
func EndCRIU(dir string) (found bool, err error) {
	pids, err := proc.Program("criu", dir).Kill()
	if len(pids) == 0 {
		return false, err
	}
	return true, proc.End(proc.Program("criu", dir))
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

// UnlockTime bounds each program that unlocks the network. They wait for one another on a lock
// file that a process of the host may hold: iptables(8), --wait.
const UnlockTime = 10 * time.Second

// UnlockNetwork removes what a killed CRIU may have left in the network namespace of the container's
// init: rules that drop all packets, in iptables or nftables. Without any it does nothing. Each
// program that it runs may take bound.
func UnlockNetwork(init *proc.Process, bound time.Duration) error {
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
		ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", init.PID))
		if err != nil {
			return nil // it has ended
		}
		defer ns.Close()
		if !init.Exists() {
			return nil // and ns may be another process's
		}
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("setns", err)
		}
		var errs []error
		for _, iptables := range []string{"iptables", "ip6tables"} {
			switch out, err := call("", iptables, "-n", "-L", "CRIU"); {
			case errors.Is(err, context.DeadlineExceeded):
				errs = append(errs, fmt.Errorf("look for locks of the network: %w: %s", err, LastLines(out, 1)))
				continue
			case err != nil:
				continue // no such rules
			}
			if out, err := call(criuUnlock, iptables+"-restore", "--noflush"); err != nil {
				errs = append(errs, fmt.Errorf("unlock the network: %w: %s", err, LastLines(out, 1)))
			}
		}
		// criu: nftables_get_table
		_, _ = call("", "nft", "delete", "table", "inet", "CRIU-"+strconv.Itoa(init.PID))
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

// dumped returns why CRIU has not written a container to dir, if it has not, and lets packets pass
// again.
func (p *CRIU) dumped(ctx context.Context, id, dir string, init *proc.Process, err error) error {
	if err == nil {
		return nil
	}
	err = criuFailure(ctx, "checkpoint container "+id, filepath.Join(dir, "dump.log"), err)
	if lerr := UnlockNetwork(init, UnlockTime); lerr != nil {
		p.log.Warn("network of a container may be locked", "container", id, "err", lerr)
	}
	return err
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

func LastLines(out []byte, n int) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "; ")
}

// criuOpts returns libcontainer's options for a dump and for its restore.
//
// Cgroups are "soft": CRIU enters the cgroup that we created and creates those that the
// container had created below it, with the namespace in which it sees them.
func criuOpts(dir string) *libcontainer.CriuOpts {
	return &libcontainer.CriuOpts{
		ImagesDirectory:   filepath.Join(dir, "checkpoint"),
		WorkDirectory:     dir,
		LeaveRunning:      true,
		FileLocks:         true,
		ManageCgroupsMode: "soft",
		StatusFd:          -1,
	}
}

// checkDestinations refuses a container with a mount or device whose place, after the links of its
// image, contains "]:". CRIU before 4.3.1 keeps them as "mnt[PLACE]:SOURCE", unescaped, so such a
// place names the directory of the node that a restore mounts there (CVE-2026-119101). libcontainer
// refuses it too, as an internal error.
func checkDestinations(config *configs.Config) error {
	check := func(what, place string) error {
		at, err := securejoin.SecureJoin(config.Rootfs, strings.TrimPrefix(place, config.Rootfs))
		if err != nil {
			return fmt.Errorf("%s %s: %w", what, place, err)
		}
		if at = strings.TrimPrefix(at, config.Rootfs); at == "" || strings.Contains(at, "]:") {
			return fault.WrongState.Errorf("%s %s is at %q in the image, which CRIU cannot record", what, place, at)
		}
		return nil
	}
	for _, m := range config.Mounts {
		if m.IsBind() {
			if err := check("mount", m.Destination); err != nil {
				return err
			}
		}
	}
	for _, d := range config.Devices {
		if d.Path != "" {
			if err := check("device", d.Path); err != nil {
				return err
			}
		}
	}
	return nil
}

// A Restore is a start of a container from the checkpoint in Dir, until Context ends: the caller's,
// unlike that of the start, ends with its connection.
type Restore struct {
	Context context.Context
	Dir     string
}

// run is the startFunc of libcontainer's containers.
func (r *Restore) run(_ context.Context, lc *libcontainer.Container, p *Plan, group map[string]string) error {
	config := lc.Config()
	if err := checkDestinations(&config); err != nil {
		return fmt.Errorf("restore container %s: %w", p.ID, err)
	}
	defer endingCRIU(r.Context, r.Dir)()
	if err := lc.Restore(p.process, criuOpts(r.Dir)); err != nil {
		return r.failed(p.ID, err)
	}
	with := maps.Clone(group)
	delete(with, "")
	if len(with) == 0 {
		return nil // without v1, all of them are in v2
	}
	pids, err := proc.Members(with)
	if err != nil {
		return err
	}
	return limits.JoinAll(group, pids...)
}

func (r *Restore) failed(id string, err error) error {
	return criuFailure(r.Context, "restore container "+id, filepath.Join(r.Dir, "restore.log"), err)
}
