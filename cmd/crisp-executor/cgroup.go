package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	systemdDbus "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/systemd"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/kernel"
)

// settle moves this process to a cgroup that outlives crispd's service. If systemd runs the host
// on cgroup v2, it owns all cgroups that it has not delegated: then the cgroup is a scope,
// systemd's unit for a process of no service. Otherwise it is a cgroup below the root of every
// hierarchy.
func settle(name string) error {
	if !cgroups.IsCgroup2UnifiedMode() || !systemd.IsRunningSystemd() || kernel.Bare() {
		return move(name)
	}
	err := moveToScope(name)
	if err == nil {
		return nil
	}
	return errors.Join(err, move(name))
}

// moveToScope makes systemd create a scope of that name with this process in it.
func moveToScope(name string) error {
	own, err := cgroups.ParseCgroupFile("/proc/self/cgroup")
	if err != nil {
		return err
	}
	name = filepath.Base(name)
	if filepath.Base(own[""]) == name+".scope" {
		return nil // moved before this process re-executed itself
	}
	prefix, rest, ok := strings.Cut(name, "-")
	if !ok {
		prefix, rest = "crisp", name
	}
	m, err := systemd.NewUnifiedManager(&cgroups.Cgroup{
		ScopePrefix: prefix, Name: rest, Parent: "system.slice", Systemd: true,
		Resources: &cgroups.Resources{SkipDevices: true},
		SystemdProps: []systemdDbus.Property{
			systemdDbus.PropDescription("crisp's executor, parent of all containers"),
			// It forks for every start: no default limit may prevent that.
			{Name: "TasksMax", Value: dbus.MakeVariant(^uint64(0))},
		},
	}, "")
	if err != nil {
		return err
	}
	return m.Apply(os.Getpid())
}

// move puts this process into the cgroup of that name, in every hierarchy.
func move(name string) error {
	dirs, err := hierarchies()
	for _, root := range dirs {
		dir := filepath.Join(root, name)
		if e := os.MkdirAll(dir, 0o755); e != nil {
			err = errors.Join(err, e)
			continue
		}
		e := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0)
		if errors.Is(e, unix.ENOSPC) { // a v1 cpuset without CPUs admits no process; it is not needed
			e = os.Remove(dir)
		}
		err = errors.Join(err, e)
	}
	return err
}

// leave undoes move, except for cgroups that are not empty. systemd removes a scope
// itself.
func leave(name string) {
	dirs, _ := hierarchies()
	for _, root := range dirs {
		os.WriteFile(filepath.Join(root, "cgroup.procs"), []byte("0"), 0)
		for dir := filepath.Clean("/" + name); dir != "/" && os.Remove(filepath.Join(root, dir)) == nil; {
			dir = filepath.Dir(dir)
		}
	}
}

// hierarchies returns the mount points of the cgroup hierarchies.
func hierarchies() (dirs []string, err error) {
	all, err := kernel.Hierarchies()
	for _, h := range all {
		if h.Whole {
			dirs = append(dirs, h.Dir)
		}
	}
	return dirs, err
}
