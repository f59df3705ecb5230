package test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/thread"
)

// nobody is another user of the host, in none of crisp's groups.
const nobody = 65534

// asNobody runs f with that user's rights.
func asNobody(f func() error) error {
	return thread.Run(func() error {
		// Only this thread changes: the functions of syscall change the whole process.
		for _, call := range [][4]uintptr{
			{unix.SYS_SETGROUPS, 0, 0, 0},
			{unix.SYS_SETRESGID, nobody, nobody, nobody},
			{unix.SYS_SETRESUID, nobody, nobody, nobody},
		} {
			if _, _, errno := unix.RawSyscall(call[0], call[1], call[2], call[3]); errno != 0 {
				return fmt.Errorf("become user %d: %w", nobody, errno)
			}
		}
		return f()
	})
}

// nobodyCmd is:
//
//	nobody open FILE        opens it to read as another user of the host
//	nobody reaches DIR...   what below the directories such a user may read, write, list or pass
func (n *node) nobodyCmd(ts *testscript.TestScript, args []string) error {
	if len(args) < 2 {
		return errUsage
	}
	switch args[0] {
	case "open":
		return asNobody(func() error {
			f, err := os.Open(args[1])
			if err == nil {
				f.Close()
			}
			return err
		})
	case "reaches":
		for _, dir := range args[1:] {
			found, err := reachable(dir)
			if err != nil {
				return err
			}
			for i, line := range found {
				for name, id := range n.ids {
					line = strings.ReplaceAll(line, id, name)
				}
				found[i] = strings.TrimPrefix(line, n.dir+"/")
			}
			slices.Sort(found) // by name, not by ID
			for _, line := range found {
				fmt.Fprintln(ts.Stdout(), line)
			}
		}
		return nil
	}
	return errUsage
}

// reachable lists what another user of the host can reach in dir: the path, and the rights
// as letters. Names alone do not count, as they depend on the directories above.
func reachable(dir string) (found []string, err error) {
	var paths []string
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type()&fs.ModeSymlink == 0 {
			paths = append(paths, path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it has been removed meanwhile
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	err = asNobody(func() error {
		for _, path := range paths {
			rights := ""
			for _, r := range []struct {
				letter string
				mode   uint32
			}{{"r", unix.R_OK}, {"w", unix.W_OK}, {"x", unix.X_OK}} {
				if unix.Faccessat(unix.AT_FDCWD, path, r.mode, 0) == nil {
					rights += r.letter
				}
			}
			if rights != "" {
				found = append(found, path+" "+rights)
			}
		}
		return nil
	})
	return found, err
}
