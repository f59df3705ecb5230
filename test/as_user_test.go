package test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// An ordinary user of the host, who is in no account file, and the range of IDs that this user may use
// in user namespaces. The next user has the next range.
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

// byUser makes the instance one that an ordinary user starts, without anything of root's. What that user
// may do: "network" to open /dev/net/tun, in whose place there is one that says so; "ids" to use a range
// of IDs with newuidmap(1).
func (n *node) byUser(uid int, may ...string) error {
	n.owner, n.manage = uid, func(cmd *exec.Cmd) {
		cmd.Env = append(cmd.Environ(), "HOME=/nonexistent", "XDG_CONFIG_HOME=", "XDG_RUNTIME_DIR=")
		cmd.Dir = "/"
		cmd.Args = append([]string{"unshare", "-m", "bash", "-e", "-c", `
			if [ -d /dev/net ]; then
				[[ $2 == *network* ]] && mode=666 || mode=600
				mount -t tmpfs tmpfs /dev/net
				mknod -m $mode /dev/net/tun c 10 200
				chmod $mode /dev/net/tun
			fi
			if [[ $2 == *ids* ]]; then
				mount -t tmpfs tmpfs /mnt
				sed "\$a u$0:x:$0:$0::/:" /etc/passwd > /mnt/passwd
				echo u$0:$1 | tee /mnt/subuid > /mnt/subgid
				for file in passwd subuid subgid; do mount --bind /mnt/$file /etc/$file; done
			fi
			exec setpriv --reuid $0 --regid $0 --clear-groups "${@:3}"`,
			strconv.Itoa(uid), fmt.Sprintf("%d:%d", subIDs+(uid-hostUser)*subIDsLen, subIDsLen), strings.Join(may, " "), cmd.Path}, cmd.Args[1:]...)
		cmd.Path = "/usr/bin/unshare"
	}
	if err := os.Mkdir(n.agentRoot(), 0o700); err != nil && !os.IsExist(err) {
		return err
	}
	return errors.Join(os.Chown(n.dir, uid, uid), os.Chown(n.agentRoot(), uid, uid))
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
	if n.owner != 0 {
		n.manage(cmd)
	} else if n.user {
		if pid, err := n.executorPid(); err == nil {
			join(cmd, pid)
		}
	}
	return cmd
}
