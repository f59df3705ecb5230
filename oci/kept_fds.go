package oci

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/oci/wire"
)

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
