package runtime

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"unsafe"

	"github.com/opencontainers/cgroups"
	devices "github.com/opencontainers/cgroups/devices/config"
	"golang.org/x/sys/unix"
)

// devicePrograms are programs of cgroup v2 that allow devices, each by its rules. The cgroups library
// has the kernel verify one for each container, which takes a fifth of a start's CPU time, although
// nearly all containers have the same rules: so the program of the first is attached to the others.
type devicePrograms struct {
	mu  sync.Mutex
	all map[string]*os.File // guarded by mu
}

// maxPrograms bounds the number of programs kept.
const maxPrograms = 64

// set is m.Set for a new cgroup of version 2 at dir.
func (d *devicePrograms) set(m cgroups.Manager, config *cgroups.Cgroup, dir string) error {
	r := config.Resources
	key := rulesKey(r.Devices)
	d.mu.Lock()
	program := d.all[key] // the garbage collector closes it
	d.mu.Unlock()
	if program != nil && !r.SkipDevices {
		without := *r
		without.SkipDevices = true
		err := m.Set(&without)
		config.Resources = r // Set has replaced it
		if err != nil {
			return err
		}
		if attachDevices(dir, program) == nil {
			return nil
		}
	}
	if err := m.Set(r); err != nil || r.SkipDevices {
		return err
	}
	program, err := attachedDevices(dir)
	if err != nil {
		return nil // the next one's is verified again
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.all) >= maxPrograms {
		clear(d.all)
	}
	d.all[key] = program
	return nil
}

// setCgroup is m.Set for a new cgroup.
func (b *builtins) setCgroup(m cgroups.Manager, config *cgroups.Cgroup, group map[string]string) error {
	if dir := group[""]; cgroups.IsCgroup2UnifiedMode() && dir != "" {
		return b.devices.set(m, config, dir)
	}
	return m.Set(config.Resources)
}

// rulesKey tells lists of rules apart.
func rulesKey(rules []*devices.Rule) string {
	var b strings.Builder
	for _, r := range rules {
		fmt.Fprintln(&b, r.Type, r.Major, r.Minor, r.Permissions, r.Allow)
	}
	return b.String()
}

// attachDevices attaches a program to the cgroup at dir, as the library does.
func attachDevices(dir string, program *os.File) error {
	return inCgroup(dir, func(cgroup uint32) error {
		attr := struct{ target, program, kind, flags uint32 }{cgroup, uint32(program.Fd()), unix.BPF_CGROUP_DEVICE, unix.BPF_F_ALLOW_MULTI}
		_, err := bpf(unix.BPF_PROG_ATTACH, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
		return err
	})
}

// attachedDevices returns the only program that is attached to the cgroup at dir.
func attachedDevices(dir string) (f *os.File, err error) {
	err = inCgroup(dir, func(cgroup uint32) error {
		ids := make([]uint32, 2)
		var pin runtime.Pinner
		pin.Pin(&ids[0])
		defer pin.Unpin()
		// Some kernels write a revision behind what older ones know (Linux 6.17, fixed in 7.2).
		query := struct {
			target, kind, flags, attached uint32
			ids                           uint64
			count, _                      uint32
			_                             [4]uint64
		}{target: cgroup, kind: unix.BPF_CGROUP_DEVICE, ids: uint64(uintptr(unsafe.Pointer(&ids[0]))), count: uint32(len(ids))}
		if _, err := bpf(unix.BPF_PROG_QUERY, unsafe.Pointer(&query), unsafe.Sizeof(query)); err != nil {
			return err
		}
		if query.count != 1 {
			return fmt.Errorf("cgroup %s has %d programs for devices", dir, query.count)
		}
		attr := struct{ id, _, _ uint32 }{id: ids[0]}
		fd, err := bpf(unix.BPF_PROG_GET_FD_BY_ID, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
		if err == nil {
			f = os.NewFile(fd, "devices") // close-on-exec, as all of BPF's
		}
		return err
	})
	return f, err
}

func inCgroup(dir string, do func(cgroup uint32) error) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	return do(uint32(fd))
}

func bpf(command uintptr, attr unsafe.Pointer, size uintptr) (uintptr, error) {
	for {
		n, _, errno := unix.Syscall(unix.SYS_BPF, command, uintptr(attr), size)
		switch errno {
		case 0:
			return n, nil
		case unix.EINTR, unix.EAGAIN:
			continue
		}
		return 0, os.NewSyscallError("bpf", errno)
	}
}
