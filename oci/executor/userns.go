package executor

import (
	"errors"
	"fmt"
	"os"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"
)

// giveStdio makes the root of a process's user namespace the owner of the process's pipes.
// Otherwise nobody in there could open them by their names, such as /dev/stdout; libcontainer's
// init passes them on to the process's user, which requires that.
func giveStdio(p *libcontainer.Process, config *configs.Config) error {
	if !config.Namespaces.Contains(configs.NEWUSER) {
		return nil
	}
	uid, err := config.HostRootUID()
	if err != nil {
		return err
	}
	gid, err := config.HostRootGID()
	if err != nil {
		return err
	}
	for _, end := range []any{p.Stdin, p.Stdout, p.Stderr} {
		f, ok := end.(*os.File)
		if !ok || f == nil {
			continue
		}
		err := withFD(f, func(fd int) error {
			var st unix.Stat_t
			if err := unix.Fstat(fd, &st); err != nil {
				return err
			}
			if st.Mode&unix.S_IFMT != unix.S_IFIFO {
				return nil // the host's /dev/null
			}
			return unix.Fchown(fd, uid, gid)
		})
		if err != nil && !errors.Is(err, os.ErrClosed) {
			return fmt.Errorf("give %s to the user namespace: %w", f.Name(), err)
		}
	}
	return nil
}
