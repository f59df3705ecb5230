package erofs

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Probe tries whether file systems in files of the directory dir can be mounted. The error is why not;
// see Lacking.
func Probe(dir string) (err error) {
	f, err := os.CreateTemp(dir, "erofs-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(f.Name())) }()
	defer f.Close()
	w, err := NewWriter(f)
	if err != nil {
		return err
	}
	if _, err := w.Close(&Node{Mode: unix.S_IFDIR | 0o755}, UUID{}); err != nil {
		return err
	}
	mnt, err := Mount(f.Name(), "")
	if err != nil {
		return err
	}
	return unix.Close(mnt)
}

// Lacking reports whether an error of Probe or Mount says that this kernel cannot mount EROFS from
// files there at all, and not that this once has failed.
func Lacking(err error) bool { return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOTBLK) }
