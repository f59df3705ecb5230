package rootless

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	systemdDbus "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/systemd"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/procstat"
)

const cgroupRoot = "/sys/fs/cgroup"

// noCgroupsEnv is the variable with the reason for which a new keeper got no cgroup.
const noCgroupsEnv = "CRISP_NO_CGROUPS"

// NoCgroups returns why nothing was delegated to this user, "" if that is not known.
func NoCgroups() string { return os.Getenv(noCgroupsEnv) }

// delegate has the user's service manager put a new keeper into a cgroup that is delegated to the user, and
// mounts that in the keeper's mount namespace as what there is of cgroups.
//
// It is a scope, and not the service of crispd: that cgroup would have to be empty, of all but the containers'
// cgroups, for the next crispd to start in it.
func delegate(keeper int) error {
	if !cgroups.IsCgroup2UnifiedMode() || !systemd.IsRunningSystemd() {
		return errors.New("that needs cgroup v2, and systemd")
	}
	if err := makeScope("crisp", keeper); err != nil {
		return fmt.Errorf("the user's systemd makes no scope: %w", err)
	}
	dir, err := cgroupOf(keeper)
	if err != nil {
		return err
	}
	// Controllers can be enabled only above cgroups with processes.
	own := filepath.Join(dir, "keeper")
	if err := os.Mkdir(own, 0o755); err != nil {
		return err
	}
	if err := cgroups.WriteCgroupProc(own, keeper); err != nil {
		return err
	}
	mount := exec.Command("nsenter", "-t", strconv.Itoa(keeper), "-U", "-m", "--preserve-credentials", "mount", "--bind", dir, cgroupRoot)
	if out, err := mount.CombinedOutput(); err != nil {
		return fmt.Errorf("mount %s: %w: %s", dir, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// follow moves a process to the keeper's cgroup, if that was delegated: it outlives crispd, too.
func follow(keeper, pid int) error {
	dir, err := cgroupOf(keeper)
	if err != nil || unix.Access(dir, unix.W_OK) != nil {
		return nil
	}
	return cgroups.WriteCgroupProc(dir, pid)
}

// leaveSession moves this process to a scope, if it is in a cgroup that is not the user's, such as that of a
// login, and the keeper is not: the kernel lets the user move no process from there to the keeper's.
func leaveSession(keeper int) error {
	own, err := cgroupOf(os.Getpid())
	theirs, other := cgroupOf(keeper)
	if err != nil || other != nil || unix.Access(own, unix.W_OK) == nil || unix.Access(theirs, unix.W_OK) != nil {
		return nil
	}
	return makeScope("crispd", os.Getpid())
}

// cgroupOf returns the directory of a process's cgroup of v2.
func cgroupOf(pid int) (string, error) {
	own, err := cgroups.ParseCgroupFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return "", err
	}
	return filepath.Join(cgroupRoot, own[""]), nil
}

// makeScope has the user's service manager put a process into a scope of its own, whose cgroup is the user's.
func makeScope(name string, pid int) error {
	stat, err := procstat.Read(pid)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	bus, err := systemdDbus.NewUserConnectionContext(ctx)
	if err != nil {
		return err
	}
	defer bus.Close()
	done := make(chan string, 1)
	_, err = bus.StartTransientUnitContext(ctx, fmt.Sprintf("%s-%d-%d.scope", name, pid, stat.StartTime), "fail", []systemdDbus.Property{
		systemdDbus.PropDescription("crisp's containers, and what belongs to them"),
		systemdDbus.PropPids(uint32(pid)),
		{Name: "Delegate", Value: dbus.MakeVariant(true)},
		{Name: "CollectMode", Value: dbus.MakeVariant("inactive-or-failed")}, // else one that fails stays
		{Name: "TasksMax", Value: dbus.MakeVariant(^uint64(0))},
	}, done)
	if err != nil {
		return err
	}
	select {
	case result := <-done:
		if result != "done" {
			return fmt.Errorf("its job is %s", result)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
