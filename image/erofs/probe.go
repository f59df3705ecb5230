package erofs

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Probe checks whether file systems in files of the directory dir can be mounted. The error is
// the reason why not; see Lacking.
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

// Lacking reports whether an error of Probe or Mount means that this kernel can never mount
// EROFS from files there, and not just a single failure.
func Lacking(err error) bool { return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOTBLK) }
