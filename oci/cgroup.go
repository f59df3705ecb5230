package oci

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/manager"
	"github.com/opencontainers/cgroups/systemd"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/backoff"
	"github.com/crisp-cri/crisp/internal/fault"
	hostkernel "github.com/crisp-cri/crisp/internal/kernel"
	"github.com/crisp-cri/crisp/internal/lazy"
	"github.com/crisp-cri/crisp/internal/procstat"
)

// cgroupBase is the parent of the cgroups that we create ourselves. Instances of crispd may
// share it.
const cgroupBase = "/crisp"

// ownCgroup names the cgroup of a sandbox created without one.
func ownCgroup(id string, viaSystemd bool) string {
	if viaSystemd {
		return "crisp-" + id + ".slice" // below crisp.slice: systemd.slice(5)
	}
	return path.Join(cgroupBase, id)
}

// initCgroup names, as linux.cgroupsPath, the cgroup of a sandbox's init.
func initCgroup(parent, id string, viaSystemd bool) string {
	if viaSystemd {
		return parent + ":crisp:init-" + id
	}
	return path.Join(parent, id) // the kubelet takes the whole name for an ID if it is not a scope
}

// CgroupPath returns the container's cgroup, as a path below the cgroup mount; "" if it has
// none.
func (c *Container) CgroupPath() string {
	linux := c.record.Load().Config.Spec.Linux
	if linux == nil {
		return ""
	}
	scope := strings.Split(linux.CgroupsPath, ":") // slice:prefix:name
	if len(scope) != 3 {
		return linux.CgroupsPath
	}
	slice := expanded(scope[0])
	if slice == "" {
		return ""
	}
	return path.Join(slice, scope[1]+"-"+scope[2]+".scope")
}

// CgroupPath returns the cgroup of the sandbox's containers, as a path below the cgroup mount;
// "" if the slice's name is invalid.
func (sb *Sandbox) CgroupPath() string { return expanded(sb.CgroupParent()) }

// expanded returns the path of a slice; a path is returned as it is.
func expanded(parent string) string {
	if !isSlice(parent) {
		return parent
	}
	slicePath, err := systemd.ExpandSlice(parent)
	if err != nil {
		return ""
	}
	return slicePath
}

// executorCgroup names the executor's own cgroup. It differs between instances.
func executorCgroup(state string) string {
	sum := sha256.Sum256([]byte(state))
	return "/crisp-executor-" + hex.EncodeToString(sum[:6])
}

// removeExecutorCgroup removes the cgroup of an executor that has ended. If it is a scope,
// systemd will remove it shortly.
func removeExecutorCgroup(state string) error {
	name := executorCgroup(state)
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
	defer cancel()
	for pause := backoff.New(time.Millisecond, time.Second); ; {
		scopes, _ := cgroupDirs("/system.slice" + name + ".scope")
		if !anyExists(scopes) || pause.Wait(ctx) != nil {
			break
		}
	}
	dirs, err := cgroupDirs(name)
	if err != nil {
		return err
	}
	return removeCgroups(path.Base(name), dirs)
}

func anyExists(dirs map[string]string) bool {
	for _, dir := range dirs {
		if _, err := os.Stat(dir); err == nil {
			return true
		}
	}
	return false
}

// checkCgroup refuses a parent in the other driver's syntax.
func checkCgroup(parent string, viaSystemd bool) error {
	switch {
	case parent == "":
		return nil
	case viaSystemd && (!strings.HasSuffix(parent, ".slice") || strings.Contains(parent, "/")):
		return fault.Invalid.Errorf("cgroup parent %q is not a slice, as the systemd driver requires", parent)
	case !viaSystemd && (!path.IsAbs(parent) || path.Clean(parent) != parent || strings.HasSuffix(parent, ".slice")):
		return fault.Invalid.Errorf("cgroup parent %q is not a clean absolute path, as the cgroupfs driver requires", parent)
	}
	return nil
}

func (k *kernel) Cgroup(name string, present bool) error {
	var err error
	switch {
	case !present:
		err = k.removeCgroup(name)
	case k.systemd:
		err = slice(sliceBase, name, true)
	default:
		err = makeCgroup(name)
	}
	if err != nil {
		return fmt.Errorf("cgroup %s: %w", name, err)
	}
	return nil
}

// removeCgroup removes the cgroup or slice called name, which may have been created with the
// other driver.
func (k *kernel) removeCgroup(name string) error {
	dirs, err := cgroupDirs(name)
	switch {
	case err != nil:
		return err
	case !isSlice(name):
		return removeCgroups(path.Base(name), dirs)
	case k.systemd || anyExists(dirs):
		return slice(sliceBase, name, false)
	}
	return nil
}

// isSlice reports whether name is a systemd slice, and not a path.
func isSlice(name string) bool {
	return strings.HasSuffix(name, ".slice") && !strings.HasPrefix(name, "/")
}

// sliceBase is the parent of our slices: systemd creates it with the first one and keeps it
// after the last.
const sliceBase = "crisp.slice"

// removeSliceBase stops crisp.slice if it is empty. Stopping a slice stops everything in it, so
// check first.
func removeSliceBase() error {
	dirs, err := cgroupDirs(sliceBase)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if children, _ := filepath.Glob(filepath.Join(dir, "*", "cgroup.procs")); len(children) > 0 {
			return nil // another instance's
		}
	}
	return slice("-.slice", sliceBase, false)
}

// slice has systemd create or remove the slice name in parent.
func slice(parent, name string, present bool) error {
	m, err := manager.New(&cgroups.Cgroup{
		Name: name, Parent: parent, Systemd: true,
		Resources: &cgroups.Resources{SkipDevices: true},
	})
	if err != nil {
		return err
	}
	if present {
		return m.Apply(-1) // -1: no process is moved into it
	}
	return m.Destroy()
}

// hierarchies maps each controller to its mount point, "" to that of the v2 hierarchy. Named v1
// hierarchies without controllers, such as systemd's, are included.
var hierarchies = lazy.Value(func() (map[string]string, error) {
	all, err := hostkernel.Hierarchies()
	found := make(map[string]string)
	for _, h := range all {
		for _, controller := range h.Controllers {
			found[controller] = h.Dir
		}
	}
	return found, err
})

// cgroupDirs returns the directories of a cgroup in all hierarchies, by controller; "" is the v2
// one. name is a path or a slice.
func cgroupDirs(name string) (map[string]string, error) {
	mounts, err := hierarchies()
	if err != nil {
		return nil, err
	}
	if isSlice(name) {
		if name, err = systemd.ExpandSlice(name); err != nil {
			return nil, err
		}
	}
	dirs := make(map[string]string, len(mounts))
	for controller, mount := range mounts {
		dirs[controller] = filepath.Join(mount, name)
	}
	return dirs, nil
}

// makeCgroup creates a cgroup in all hierarchies. On v2 it enables the controllers all the way
// down, so that the containers' cgroups below have them.
func makeCgroup(name string) error {
	mounts, err := hierarchies()
	if err != nil {
		return err
	}
	for controller, mount := range mounts {
		dir := mount
		if controller == "" {
			enableControllers(dir)
		}
		for _, part := range strings.Split(strings.Trim(name, "/"), "/") {
			dir = filepath.Join(dir, part)
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
			switch controller {
			case "":
				enableControllers(dir)
			case "cpuset":
				if err := inheritCpuset(dir); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// enableControllers enables all controllers of a v2 cgroup for its children, one by one: one
// that cannot be enabled (cpu, while real-time processes exist) must not cost the others.
// libcontainer refuses a limit whose controller is missing.
func enableControllers(dir string) {
	available, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return
	}
	for _, controller := range strings.Fields(string(available)) {
		_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+controller), 0)
	}
}

// inheritCpuset gives a v1 cpuset its parent's CPUs and memory nodes: a new cpuset has none, and
// accepts no process until it has some (cpuset(7)).
func inheritCpuset(dir string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		own, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			return err
		}
		if strings.TrimSpace(string(own)) != "" {
			continue
		}
		parent, err := os.ReadFile(filepath.Join(filepath.Dir(dir), file))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, file), parent, 0); err != nil {
			return err
		}
	}
	return nil
}

// removeCgroupBase removes our base cgroup if it is empty; other instances may use it.
func (k *kernel) removeCgroupBase() error {
	dirs, err := cgroupDirs(cgroupBase)
	for _, dir := range dirs {
		_ = unix.Rmdir(dir)
	}
	if sliceDirs, serr := cgroupDirs(sliceBase); k.systemd || anyExists(sliceDirs) {
		err = errors.Join(err, serr, removeSliceBase())
	}
	return err
}

// removeCgroups kills the remaining processes in the cgroups of id and below and removes the
// cgroups. They need not exist. dirs is by controller; several may share a directory. A
// directory whose name does not contain id is left alone, whatever the record says: it may be
// the root, with all processes of the machine.
func removeCgroups(id string, dirs map[string]string) error {
	var errs []error
	for _, dir := range dirs {
		if id != "" && strings.Contains(filepath.Base(dir), id) {
			errs = append(errs, removeCgroup(dir))
		}
	}
	return errors.Join(errs...)
}

func removeCgroup(dir string) error {
	// Rmdir first: it fails with ENOENT or does everything needed, except for abandoned cgroups
	// with processes in them.
	err := unix.Rmdir(dir)
	deadline := time.Now().Add(2 * time.Second)
	for pause := backoff.New(time.Millisecond, time.Second); (err == unix.EBUSY || err == unix.ENOTEMPTY) && time.Now().Before(deadline); {
		killCgroup(dir)
		children, _ := filepath.Glob(filepath.Join(dir, "*", "cgroup.procs"))
		for _, child := range children {
			if err := removeCgroup(filepath.Dir(child)); err != nil {
				return err
			}
		}
		if err = unix.Rmdir(dir); err != nil {
			time.Sleep(pause.Next()) // killed processes are still exiting
			err = unix.Rmdir(dir)
		}
	}
	if err == nil || err == unix.ENOENT {
		return nil
	}
	return fmt.Errorf("remove %s: %w", dir, err)
}

// killCgroup kills the processes in a cgroup, atomically if the kernel can (v2, since 5.14).
func killCgroup(dir string) {
	if os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0) == nil {
		return
	}
	// On v1 a frozen process does not die before it is thawed.
	_ = os.WriteFile(filepath.Join(dir, "freezer.state"), []byte("THAWED"), 0)
	for _, pid := range cgroupProcs(dir) {
		if pid <= 1 || pid == os.Getpid() {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		if slices.Contains(cgroupProcs(dir), pid) { // else the number now belongs to another process
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		}
		unix.Close(fd)
	}
}

func cgroupProcs(dir string) []int { return procstat.PIDs(filepath.Join(dir, "cgroup.procs")) }
