package rootless

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/flock"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/internal/unixsock"
)

// Options say what to enter.
type Options struct {
	State     string   // directory of the instance
	Sleeper   string   // program of the keeper, if there is none yet
	Lasting   bool     // the keeper outlives this process, which serves
	Addresses []string // of TCP where it will listen then, see Listen; "" is none
}

// Enter executes this program again, as root of the user namespace of an instance. If there is none
// yet, it makes one.
func Enter(o Options) error {
	runtime.LockOSThread() // a keeper that does not last ends with its parent's thread
	pid, slirp, err := o.namespaces()
	if err != nil {
		return fmt.Errorf("make a user namespace: %w", err)
	}
	if !o.Lasting {
		o.Addresses = nil
	}
	return enter(pid, slirp, o.Addresses)
}

// joinPatience is how long Join waits.
const joinPatience = 10 * time.Second

// Join executes this program again in the namespaces of a user's instance. It waits a moment for them
// to be made.
func Join(ctx context.Context, state string, addresses []string) error {
	ctx, cancel := context.WithTimeout(ctx, joinPatience)
	defer cancel()
	for {
		if pid, _ := processOf(state, keeperFile); pid != 0 {
			slirp, _ := processOf(state, slirpProgram)
			return enter(pid, slirp, addresses)
		}
		select {
		case <-ctx.Done():
			return fault.Unavailable.Errorf("no crispd of this user runs with state directory %s", state)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// enter executes this program in the namespaces of a process.
func enter(pid, slirp int, addresses []string) error {
	nsenter, err := exec.LookPath("nsenter")
	if err != nil {
		return fmt.Errorf("enter a user namespace: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	wd, err := os.Getwd()
	if err != nil {
		return err
	}
	args := []string{"nsenter", "-t", strconv.Itoa(pid), "-U", "-m", "--preserve-credentials", "--wd=" + wd}
	os.Setenv("PATH", os.Getenv("PATH")+":/usr/local/sbin:/usr/sbin:/sbin") // nft is not in an ordinary user's
	env := append(os.Environ(), keeperEnv+"="+strconv.Itoa(pid))
	if os.Getenv(runtimeDir) == "" { // in there, the user has another number
		env = append(env, runtimeDir+"="+userRun())
	}
	if ownNetwork(pid) {
		sockets, err := listenOutside(addresses)
		if err != nil {
			return err
		}
		args, env = append(args, "-n"), append(env, networkEnv+"="+strconv.Itoa(slirp), sockets)
	}
	return os.NewSyscallError("execve", unix.Exec(nsenter, append(append(args, self), os.Args[1:]...), env))
}

// ownNetwork reports whether a process has another network namespace than this one.
func ownNetwork(pid int) bool {
	ours, err := os.Readlink("/proc/self/ns/net")
	theirs, other := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
	return err == nil && other == nil && ours != theirs
}

// namespaces returns the PIDs of the instance's keeper and of its slirp4netns, and starts what is not
// there.
func (o Options) namespaces() (pid, slirp int, err error) {
	path := filepath.Join(o.State, keeperFile)
	if _, err := os.Stat(path); !o.Lasting && errors.Is(err, os.ErrNotExist) {
		pid, err := makeKeeper(o.Sleeper, nil, false)
		return pid, 0, err
	}
	if err := os.MkdirAll(o.State, 0o700); err != nil {
		return 0, 0, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := flock.Lock(ctx, f); err != nil {
		return 0, 0, fmt.Errorf("lock %s: %w", path, err)
	}
	if pid, err = recorded(f); err != nil {
		return 0, 0, err
	}
	if pid == 0 {
		pid = listener(filepath.Join(o.State, "executor.sock")) // the keeper was killed
	}
	if pid == 0 && !o.Lasting {
		pid, err := makeKeeper(o.Sleeper, nil, false)
		return pid, 0, err
	}
	var steps undo.Stack
	defer steps.RunIf(&err)
	if pid == 0 {
		if old, _ := processOf(o.State, slirpProgram); old != 0 { // of namespaces that are gone
			_ = unix.Kill(old, unix.SIGKILL)
		}
		if pid, err = makeKeeper(o.Sleeper, f, Lacks() == nil); err != nil {
			return 0, 0, err
		}
		steps.Add("keeper", func() error { return os.NewSyscallError("kill", unix.Kill(pid, unix.SIGKILL)) })
	}
	if o.Lasting {
		if err := leaveSession(pid); err != nil {
			return 0, 0, fmt.Errorf("leave the session's cgroup: %w", err)
		}
	}
	if ownNetwork(pid) {
		if slirp, err = processOf(o.State, slirpProgram); slirp == 0 && err == nil && o.Lasting {
			slirp, err = startSlirp(o.State, pid)
		}
	}
	return pid, slirp, err
}

// listener returns the PID of the process that listens on a socket, 0 if none does.
func listener(path string) int {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return 0
	}
	defer conn.Close()
	cred, err := unixsock.Peer(conn)
	if err != nil {
		return 0
	}
	return int(cred.Pid)
}
