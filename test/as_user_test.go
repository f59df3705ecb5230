package test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
)

// An ordinary user of the host, who is in no account file, and the range of IDs that this user may use
// in user namespaces.
const (
	hostUser  = 61234
	subIDs    = 1 << 20
	subIDsLen = 1 << 16
)

// asUser makes the instance one of an ordinary user: crispd is root of a user namespace that has the
// user's ID and, with ids, the range of others. It is made as newuidmap(1) makes it, which the
// machine may lack: by root, for a process that has no right outside of it.
//
// The executor outlives crispd in there, and the next crispd joins it.
func (n *node) asUser(ids bool) error {
	if err := os.Chown(n.dir, hostUser, hostUser); err != nil {
		return err
	}
	n.user = true
	n.manage = func(cmd *exec.Cmd) {
		cmd.Env = append(cmd.Env, "HOME="+n.dir) // root's cannot be read
		if pid, err := n.executorPid(); err == nil {
			join(cmd, pid)
			return
		}
		// A new network namespace has no loopback device that is up.
		cmd.Args = append([]string{"sh", "-c", `ip link set lo up && exec "$0" "$@"`, cmd.Path}, cmd.Args[1:]...)
		cmd.Path = "/bin/sh"
		own := []syscall.SysProcIDMap{{ContainerID: 0, HostID: hostUser, Size: 1}}
		if ids {
			own = append(own, syscall.SysProcIDMap{ContainerID: 1, HostID: subIDs, Size: subIDsLen})
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWCGROUP,
			UidMappings: own, GidMappings: own, GidMappingsEnableSetgroups: ids,
			Credential: &syscall.Credential{NoSetGroups: !ids},
		}
	}
	return nil
}

// byUser makes the instance one that an ordinary user starts, without anything of root's. Whether it has
// a network depends on the machine's /dev/net/tun, in whose place there is one that says so.
func (n *node) byUser(network bool) error {
	n.ordinary = true
	mode := "600"
	if network {
		mode = "666"
	}
	n.manage = func(cmd *exec.Cmd) {
		asOrdinary(cmd)
		cmd.SysProcAttr = nil
		cmd.Args = append([]string{"unshare", "-m", "sh", "-c", `if [ -d /dev/net ]; then
				mount -t tmpfs tmpfs /dev/net && mknod -m "$0" /dev/net/tun c 10 200 && chmod "$0" /dev/net/tun || exit
			fi
			user=$1; shift; exec setpriv --reuid "$user" --regid "$user" --clear-groups "$@"`,
			mode, strconv.Itoa(hostUser), cmd.Path}, cmd.Args[1:]...)
		cmd.Path = "/usr/bin/unshare"
	}
	if err := os.Mkdir(n.agentRoot(), 0o700); err != nil && !os.IsExist(err) {
		return err
	}
	return errors.Join(os.Chown(n.dir, hostUser, hostUser), os.Chown(n.agentRoot(), hostUser, hostUser))
}

// asOrdinary makes a command an ordinary user's.
func asOrdinary(cmd *exec.Cmd) {
	cmd.Env = append(cmd.Environ(), "HOME=/nonexistent", "XDG_CONFIG_HOME=", "XDG_RUNTIME_DIR=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: hostUser, Gid: hostUser}}
	cmd.Dir = "/"
}

// join makes a command run in the namespaces of a process, as their root.
func join(cmd *exec.Cmd, pid int) {
	// Its group comes second: nsenter(1) sets it only with the supplementary ones, which may be
	// impossible.
	cmd.Args = append([]string{"nsenter", "-t", strconv.Itoa(pid), "-U", "-m", "-n", "-C", "--preserve-credentials", "-S", "0",
		"setpriv", "--regid", "0", "--keep-groups", cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/usr/bin/nsenter"
	cmd.Dir = "/"
}

// command returns a command of crispd in the namespaces of the instance.
func (n *node) command(args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(n.binaries.dir, "crispd"), args...)
	if n.ordinary {
		asOrdinary(cmd)
	} else if n.user {
		if pid, err := n.executorPid(); err == nil {
			join(cmd, pid)
		}
	}
	return cmd
}
