package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

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
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read boot mark: %w", err)
	}
	isNew := err != nil
	var old bootFile
	if !isNew && (json.Unmarshal(data, &old) != nil || old.BootID == "") {
		old = bootFile{}
		m.log.Warn("boot mark was unreadable")
	}
	copied, _ := os.ReadFile(m.copyPath())
	switch {
	case isNew:
		m.boot = Fresh
	case old.BootID == m.bootID, string(copied) == m.bootID:
		// The copy knows it if the mark is damaged, or there was no room to write it. A restart that is
		// taken for a reboot would report running containers as ended.
		m.boot = Restart
	case old.Clean:
		m.boot = Reboot
	default:
		m.boot = Unclean
	}
	err = m.writeBoot(bootFile{BootID: m.bootID})
	if atomicfile.IsFull(err) && !isNew && !old.Clean {
		m.log.Warn("boot mark was not written: it stays as it was", "boot", m.boot, "err", err) // and is still unclean
	} else if err != nil {
		return err
	}
	// Last, as a start that fails before has handled no reboot.
	if m.state != "" {
		if err := atomicfile.WriteVolatile(m.copyPath(), []byte(m.bootID), 0o600); err != nil {
			m.log.Warn("copy of the boot mark was not written", "err", err)
		}
	}
	return nil
}

// copyPath returns the path of the copy of the boot ID. One that is not of this boot tells nothing.
func (m *Manager) copyPath() string { return filepath.Join(m.state, "boot-id") }

func (m *Manager) writeBoot(b bootFile) error {
	data, err := json.Marshal(b)
	if err != nil {
		return fmt.Errorf("encode boot mark: %w", err)
	}
	path := filepath.Join(m.dir, "boot.json")
	err = atomicfile.Write(path, data, 0o600)
	// A daemon that does not start cannot free any space. A mark left half written by a power cut
	// counts as an unclean end.
	if atomicfile.IsFull(err) && atomicfile.Overwrite(path, data) == nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("write boot mark: %w", err)
	}
	return nil
}
