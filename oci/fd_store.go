package oci

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/oci/wire"
)

// A DescriptorStore keeps descriptors for the next daemon while none runs; the service manager
// is one. Without it, a container whose executor dies while no daemon runs loses its stdio.
type DescriptorStore interface {
	// Keep keeps a duplicate of f.
	Keep(name string, f *os.File) error
	// Forget closes the descriptor kept under name. A missing one is no error.
	Forget(name string) error
}

// The name of a descriptor in the store is the beginning of its container's ID and a letter: all
// names together must fit into 128 KiB, see FileDescriptorStoreMax= in the service's unit.
const storedID = 12

var storeLetters = map[string]string{wire.FDPid: "p", wire.FDStdin: "i", wire.FDStdout: "o", wire.FDStderr: "e", wire.FDPTY: "t"}

// storeName is the name under which a descriptor of a container is stored; "" = it is not.
func storeName(id, name string) string {
	letter := storeLetters[name]
	if letter == "" || len(id) < storedID {
		return ""
	}
	return id[:storedID] + "." + letter
}

// takeStored hands the containers the descriptors that the store has kept for them, and removes
// the others from the store. It takes ownership of the descriptors in stored.
func (r *Runtime) takeStored(stored map[string]int) {
	for _, name := range slices.Sorted(maps.Keys(stored)) {
		if c, what := r.storedFor(name); c != nil {
			c.mu.Lock()
			c.fds = append(c.fds, keptFD{what, stored[name]})
			c.mu.Unlock()
			c.storing.Lock()
			c.stored = append(c.stored, name)
			c.storing.Unlock()
			continue
		}
		unix.Close(stored[name])
		r.forgetStored(name)
	}
}

// storedFor returns the container, alive as far as is known, to which a name in the store
// refers, and the descriptor's own name.
func (r *Runtime) storedFor(name string) (*Container, string) {
	id, letter, _ := strings.Cut(name, ".")
	for what, l := range storeLetters {
		if l != letter || len(id) != storedID {
			continue
		}
		if c, err := r.containers.get(id); err == nil && c.status.Load().State < Exited {
			return c, what
		}
	}
	return nil, ""
}

func (r *Runtime) forgetStored(name string) {
	if r.o.Store == nil {
		return
	}
	if err := r.o.Store.Forget(name); err != nil {
		r.log.Warn("service manager keeps an unneeded descriptor", "name", name, "err", err)
	}
}

// store puts the descriptors that c keeps into the store, unless they are there already. They
// stay the same for as long as the container runs, whichever executor it has. store runs in
// parallel with the start, which need not wait for a service manager.
func (c *Container) store() {
	c.storing.Lock()
	defer c.storing.Unlock()
	if c.status.Load().State >= Exited {
		return // unstore has run, or will find nothing
	}
	files, err := c.lend()
	defer wire.CloseAll(files)
	for _, f := range files {
		name := storeName(c.id, f.Name())
		if name == "" || slices.Contains(c.stored, name) {
			continue
		}
		if err = c.rt.o.Store.Keep(name, f); err != nil {
			break
		}
		c.stored = append(c.stored, name)
	}
	if err != nil {
		c.rt.log.Warn("stdio is not kept by the service manager", "container", c.id, "err", err)
	}
}

// unstore removes the descriptors of c, which has ended, from the store.
func (c *Container) unstore() {
	c.storing.Lock()
	defer c.storing.Unlock()
	for _, name := range c.stored {
		c.rt.forgetStored(name)
	}
	c.stored = nil
}

// A keptFD is a descriptor that we keep for the executor's successor and never use. It is a bare
// number because the poller would watch an os.File: each line a container writes would wake us.
type keptFD struct {
	name string
	fd   int
}

// keepFDs turns files into kept descriptors. It closes files in any case.
func keepFDs(files []*os.File) ([]keptFD, error) {
	var kept []keptFD
	var errs []error
	for _, f := range files {
		raw, err := f.SyscallConn()
		if err == nil {
			cerr := raw.Control(func(fd uintptr) {
				var n int
				if n, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 3); err == nil {
					kept = append(kept, keptFD{f.Name(), n})
				}
			})
			err = errors.Join(err, cerr)
		}
		errs = append(errs, err)
		f.Close()
	}
	return kept, errors.Join(errs...)
}

func dupFDs(kept []keptFD) ([]*os.File, error) {
	var files []*os.File
	for _, h := range kept {
		fd, err := unix.FcntlInt(uintptr(h.fd), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			wire.CloseAll(files)
			return nil, fmt.Errorf("duplicate %s: %w", h.name, err)
		}
		files = append(files, os.NewFile(uintptr(fd), h.name))
	}
	return files, nil
}

func closeFDs(kept []keptFD) {
	for _, h := range kept {
		unix.Close(h.fd)
	}
}
