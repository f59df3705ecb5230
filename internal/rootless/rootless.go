// Package rootless lets an ordinary user run crisp's programs.
//
// An ordinary user's crispd is root of a user namespace. A process that does nothing, the keeper, has
// it, with a mount namespace: it outlives crispd, as the executor and containers do, which
// the next crispd must find there. crispd itself is executed in there by nsenter(1), in place of the
// one that the user has started: so there is one process to signal and to watch, and none in between.
// The user's agent follows it there.
//
// With slirp4netns(1) there is a network namespace, too. slirp4netns is its way out, and outlives
// crispd as well. It also forwards the machine's ports, straight to the addresses of pods (Ports): so
// each port can have an address of the machine, and no process of crisp's own copies bytes. Files of
// the state directory name both:
//
//	keeper             the keeper's PID and start time
//	slirp4netns        those of slirp4netns
//	slirp4netns.sock   where it takes requests
//
// docs/rootless.md says why it is neither pasta(1) nor RootlessKit.
package rootless

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/crisp-cri/crisp/internal/userns"
)

// Variables of a program that an ordinary user has started, in the keeper's namespaces: the PIDs of the
// keeper and of slirp4netns, and the sockets that it got from outside.
const (
	keeperEnv  = "CRISP_KEEPER"
	networkEnv = "CRISP_NETWORK"
	socketsEnv = "CRISP_SOCKETS"
)

// runtimeDir is the variable with the user's directory that does not outlive a reboot.
const runtimeDir = "XDG_RUNTIME_DIR"

// OfUser reports whether an ordinary user has started this program.
func OfUser() bool { return os.Geteuid() != 0 || Entered() }

// Entered reports whether this program runs in an ordinary user's namespaces because of Enter.
func Entered() bool { return os.Getenv(keeperEnv) != "" && userns.Own() != nil }

// Dirs are the directories of an ordinary user's instance.
type Dirs struct {
	Root, Config, State string // as root has /var/lib/crisp, /etc/crisp and /run/crisp
}

// UserDirs returns them (XDG Base Directory Specification).
func UserDirs() (Dirs, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		return Dirs{}, fmt.Errorf("find the user's directories: %w", err)
	}
	in := func(name, other string) string {
		if dir := os.Getenv(name); filepath.IsAbs(dir) {
			return filepath.Join(dir, "crisp")
		}
		return filepath.Join(other, "crisp")
	}
	return Dirs{
		Root:   in("XDG_DATA_HOME", filepath.Join(home, ".local/share")),
		Config: in("XDG_CONFIG_HOME", filepath.Join(home, ".config")),
		State:  in(runtimeDir, userRun()),
	}, nil
}

func userRun() string { return filepath.Join("/run/user", strconv.Itoa(os.Getuid())) }
