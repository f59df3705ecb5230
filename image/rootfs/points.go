package rootfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// A root file system may have one layer below those of its image: what every container mounts
// something on. Most images lack some of it. Whoever starts a container would make that in the
// writable layer, for which overlayfs copies /etc up, and it would be removed with that again. What an
// image has in its place, such as a link, hides it, and it is no change of the container's (Diff).

// PointFiles are the files of the layer, absolute; its directories are theirs and pointDirs.
func PointFiles() []string { return []string{"/etc/hosts", "/etc/hostname", "/etc/resolv.conf"} }

var pointDirs = []string{"/", "/dev", "/etc", "/proc", "/sys"}

// makePoints makes the layer at dir, or what a power cut has taken of it.
func makePoints(dir string) (string, error) {
	for _, name := range pointDirs {
		path := filepath.Join(dir, name)
		if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
		if err := os.Chmod(path, 0o755); err != nil { // whatever the umask
			return "", err
		}
	}
	for _, name := range PointFiles() {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE, 0o644)
		if err != nil {
			return "", err
		}
		if err := errors.Join(f.Chmod(0o644), f.Close()); err != nil {
			return "", err
		}
	}
	return dir, nil
}
