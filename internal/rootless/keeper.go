package rootless

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/procstat"
	"github.com/crisp-cri/crisp/internal/undo"
)

// keeperFile names the keeper, in the state directory.
const keeperFile = "keeper"

// recorded returns the PID of the process that f names; 0 if it names none, or one that has ended.
func recorded(f *os.File) (pid int, err error) {
	data, err := io.ReadAll(io.LimitReader(f, 100))
	if err != nil {
		return 0, err
	}
	var started uint64
	if n, _ := fmt.Sscan(string(data), &pid, &started); n < 2 {
		return 0, nil
	}
	if stat, err := procstat.Read(pid); err != nil || stat.Ended() || stat.StartTime != started {
		return 0, nil
	}
	return pid, nil
}

// processOf returns the PID of the process that a file of the state directory names; 0 if none runs.
func processOf(state, file string) (int, error) {
	f, err := os.Open(filepath.Join(state, file))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return recorded(f)
}

// record makes f name a process.
func record(f *os.File, pid int) error {
	stat, err := procstat.Read(pid)
	if err != nil {
		return err
	}
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err = f.WriteAt(fmt.Appendf(nil, "%d %d\n", pid, stat.StartTime), 0)
	return err
}

// makeKeeper starts a keeper, with a network namespace or without, and names it in f; without f it ends
// with this thread.
func makeKeeper(program string, f *os.File, network bool) (pid int, err error) {
	var steps undo.Stack
	defer steps.RunIf(&err)
	cmd := exec.Command(program) // sleeps, in 8 kB
	cmd.Args, cmd.Env, cmd.Dir = []string{"crisp-keeper"}, []string{}, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS, Setsid: true}
	if network {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWNET
	}
	if f == nil {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	steps.Add("keeper", cmd.Process.Kill)
	pid = cmd.Process.Pid
	if err := mapIDs(pid); err != nil {
		return pid, err
	}
	if err := delegate(pid); err != nil {
		os.Setenv(noCgroupsEnv, err.Error())
	}
	if f == nil {
		return pid, nil
	}
	return pid, record(f, pid)
}

// mapIDs maps the IDs of a new user namespace: the user's own to root, and those of subuid(5) and
// subgid(5) after it, if there are both and newuidmap(1).
func mapIDs(pid int) error {
	at := func(name string) string { return fmt.Sprintf("/proc/%d/%s", pid, name) }
	users, groups := ranges("/etc/subuid"), ranges("/etc/subgid")
	_, uerr := exec.LookPath("newuidmap")
	_, gerr := exec.LookPath("newgidmap")
	if len(users) == 0 || len(groups) == 0 || uerr != nil || gerr != nil {
		return errors.Join(os.WriteFile(at("setgroups"), []byte("deny"), 0), // else the kernel accepts no map of groups
			os.WriteFile(at("uid_map"), fmt.Append(nil, "0 ", os.Getuid(), " 1"), 0),
			os.WriteFile(at("gid_map"), fmt.Append(nil, "0 ", os.Getgid(), " 1"), 0))
	}
	for _, m := range []struct {
		program string
		own     int
		more    [][2]string
	}{{"newuidmap", os.Getuid(), users}, {"newgidmap", os.Getgid(), groups}} {
		args, next := []string{strconv.Itoa(pid), "0", strconv.Itoa(m.own), "1"}, 1
		for _, r := range m.more {
			n, err := strconv.Atoi(r[1])
			if err != nil {
				return fmt.Errorf("%s: count %q of IDs: %w", m.program, r[1], err)
			}
			args = append(args, strconv.Itoa(next), r[0], r[1])
			next += n
		}
		if out, err := exec.Command(m.program, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", m.program, err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}

// maxRanges bounds the ranges of a user: the kernel takes 340 in a map (user_namespaces(7)).
const maxRanges = 300

// ranges returns the user's ranges in a file in the form of subuid(5), each as its start and its count.
func ranges(file string) (list [][2]string) {
	f, err := os.Open(file)
	if err != nil {
		return nil
	}
	defer f.Close()
	id := strconv.Itoa(os.Getuid())
	name := id
	if u, err := user.LookupId(id); err == nil {
		name = u.Username
	}
	for lines := bufio.NewScanner(f); lines.Scan() && len(list) < maxRanges; {
		field := strings.Split(strings.TrimSpace(lines.Text()), ":")
		if len(field) == 3 && (field[0] == name || field[0] == id) {
			list = append(list, [2]string{field[1], field[2]})
		}
	}
	return list
}

// End ends the keeper and slirp4netns of an instance that was wiped.
func End() error {
	var errs []error
	for env, name := range map[string]string{keeperEnv: "crisp-podinit", networkEnv: slirpProgram} {
		pid, _ := strconv.Atoi(os.Getenv(env)) // 0 for root's
		if stat, err := procstat.Read(pid); err == nil && stat.Name == name {
			errs = append(errs, os.NewSyscallError("kill", unix.Kill(pid, unix.SIGKILL)))
		}
	}
	return errors.Join(errs...)
}
