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
//
// A record that is intact and of a later version is another matter: Open fails, and
// nothing is touched, because the way back from a newer crispd must not look like
// damage (version.go).
//
// A Save that was interrupted leaves the old record, or a directory without
// one. A Remove that was interrupted by a power cut may leave the record: what
// is removed is not synced, because removing it again costs less than waiting
// for the disk each time.
package checkpoint

import (
	"fmt"
	"log/slog"
	"sync"

	"github.com/crisp-cri/crisp/internal/atomicfile"
)

// A Manager keeps the records below one directory. Its methods may be called
// at the same time; calls for one record must not overlap.
type Manager struct {
	dir    string
	bootID string
	boot   Boot
	log    *slog.Logger
	kinds  sync.Map // directories of kinds whose names are on disk
}

// Open makes dir if it is not there (mode 0700) and tells from <dir>/boot.json
// what happened since the last Open. It is fault.WrongState if a newer crispd has
// written one of the records; then nothing is changed, boot.json neither.
func Open(dir string, log *slog.Logger) (*Manager, error) {
	bootID, err := currentBootID()
	if err != nil {
		return nil, err
	}
	return open(dir, bootID, log)
}

func open(dir, bootID string, log *slog.Logger) (*Manager, error) {
	if err := atomicfile.MakeDirs(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make record directory: %w", err)
	}
	m := &Manager{dir: dir, bootID: bootID, log: log}
	if err := m.refuseNewer(); err != nil {
		return nil, err
	}
	if err := m.readBoot(); err != nil {
		return nil, err
	}
	return m, nil
}
