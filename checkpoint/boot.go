package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/atomicfile"
)

// A Boot is what happened between the last Open of a directory and this one.
type Boot uint8

const (
	Fresh   Boot = iota // nothing: the directory is new
	Restart             // the daemon ended, cleanly or not; the machine kept running
	Reboot              // the machine was restarted after the daemon had ended cleanly
	Unclean             // the machine was restarted without that: power loss, reset, panic
)

func (b Boot) String() string {
	return [...]string{"fresh", "restart", "reboot", "unclean"}[b]
}

// Rebooted reports whether the machine was restarted: no earlier process, mount or namespace
// exists any more.
func (b Boot) Rebooted() bool { return b == Reboot || b == Unclean }

// Boot returns what Open found.
func (m *Manager) Boot() Boot { return m.boot }

// MarkClean records, durably, that the daemon is about to exit with nothing in flight.
// The next Open removes the mark.
func (m *Manager) MarkClean() error {
	return m.writeBoot(bootFile{BootID: m.bootID, Clean: true})
}

// bootFile is the content of boot.json.
type bootFile struct {
	BootID string `json:"bootID"`
	Clean  bool   `json:"clean"`
}

// readBoot compares boot.json with the running kernel and replaces it.
func (m *Manager) readBoot() error {
	data, err := os.ReadFile(filepath.Join(m.dir, "boot.json"))
	var old bootFile
	switch {
	case errors.Is(err, fs.ErrNotExist):
		m.boot = Fresh
	case err != nil:
		return fmt.Errorf("read boot mark: %w", err)
	case json.Unmarshal(data, &old) != nil || old.BootID == "":
		// The file is replaced atomically, so only a damaged disk leads here: assume the worst.
		m.log.Warn("boot mark was unreadable")
		m.boot = Unclean
	case old.BootID == m.bootID:
		m.boot = Restart
	case old.Clean:
		m.boot = Reboot
	default:
		m.boot = Unclean
	}
	return m.writeBoot(bootFile{BootID: m.bootID})
}

func (m *Manager) writeBoot(b bootFile) error {
	data, err := json.Marshal(b)
	if err != nil {
		return fmt.Errorf("encode boot mark: %w", err)
	}
	path := filepath.Join(m.dir, "boot.json")
	err = atomicfile.Write(path, data, 0o600)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		// A daemon that does not start cannot free any space. A mark left half written by a
		// power cut counts as an unclean end.
		if again := overwrite(path, data); again == nil {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("write boot mark: %w", err)
	}
	return nil
}

// overwrite changes a file in place, which needs no free space if its size stays about the same.
func overwrite(path string, data []byte) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.WriteAt(data, 0); err != nil {
		return err
	}
	if err := f.Truncate(int64(len(data))); err != nil {
		return err
	}
	return f.Sync()
}
