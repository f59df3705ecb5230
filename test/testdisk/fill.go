package testdisk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Fill uses up all blocks and inodes of the tmpfs at dir, with files in dir. It fails if the inodes
// are used up first.
func Fill(dir string) error {
	// A write that does not fit leaves its beginning, so less than a page is free at the end.
	data := make([]byte, 1<<20)
	for {
		err := os.WriteFile(filepath.Join(dir, fmt.Sprint(time.Now().UnixNano())), data, 0o600)
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			return err
		}
		switch {
		case err != nil && !errors.Is(err, unix.ENOSPC):
			return err
		case st.Bavail == 0 && st.Ffree == 0: // also if the number of inodes is unlimited
			return nil
		case st.Bavail == 0:
			data = nil
		case err != nil:
			return fmt.Errorf("%d blocks are left without an inode", st.Bavail)
		}
	}
}
