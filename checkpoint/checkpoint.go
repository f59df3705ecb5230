// Package checkpoint keeps durable records: small JSON documents with a version
// and a checksum, replaced whole and synced before Save returns.
//
//	<dir>/<kind>/<id>/record.json   {"version":1,"checksum":"sha256:…","payload":…}
//	<dir>/quarantine/               records that did not decode, moved aside
//	<dir>/boot.json                 boot id and clean-shutdown mark
//
// A record that fails its checksum is moved aside, logged, and never stops the
// daemon: whoever owns the kind finds what it pointed at by sweeping. The
// directory of a record is shared with its owner, which keeps files of its own
// there; Remove takes all of them.
package checkpoint

import (
	"fmt"
	"log/slog"
	"os"
)

// A Manager keeps the records below one directory. Its methods may be called
// at the same time; calls for one record must not overlap.
type Manager struct {
	dir  string
	log  *slog.Logger
	boot Boot
}

// Open makes dir if it is not there (mode 0700), removes what an interrupted
// Save left, and tells from <dir>/boot.json what happened since the last Open.
func Open(dir string, log *slog.Logger) (*Manager, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make record directory: %w", err)
	}
	panic("not yet")
}

// Save writes v, as JSON, as the record id of kind and returns once it is on
// disk.
func (m *Manager) Save(kind, id string, v any) error { panic("not yet") }

// Load decodes the record id of kind into v. Errors: fault.NotFound if there is
// none, or if it is corrupt and was therefore moved aside.
func (m *Manager) Load(kind, id string, v any) error { panic("not yet") }

// IDs lists the records of kind in ascending order. Corrupt ones are moved
// aside, logged and left out.
func (m *Manager) IDs(kind string) ([]string, error) { panic("not yet") }

// Remove deletes the record id of kind and its directory. Removing a record
// that is not there is no error.
func (m *Manager) Remove(kind, id string) error { panic("not yet") }

// A Boot says what happened between the last Open of a directory and this one.
type Boot uint8

const (
	Fresh   Boot = iota // nothing: the directory is new
	Restart             // the daemon ended, cleanly or not; the machine ran on
	Reboot              // the machine was restarted after the daemon had ended cleanly
	Unclean             // the machine was restarted without that: power loss, reset, panic
)

// Rebooted reports whether the machine was restarted: no process, mount or
// namespace of before exists any more.
func (b Boot) Rebooted() bool { return b == Reboot || b == Unclean }

// Boot returns what Open found.
func (m *Manager) Boot() Boot { return m.boot }

// MarkClean says, durably, that the daemon ends and has nothing in flight. The
// next Open takes the mark away.
func (m *Manager) MarkClean() error { panic("not yet") }
