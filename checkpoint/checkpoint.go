// Package checkpoint stores records: small JSON documents with a version and a checksum, replaced
// atomically. All of them outlive every process. What a power cut may take of them is decided for
// each kind, since syncing costs a pod more than all else that it writes:
//
//	record                   promise                 why
//	images                   Save: survives it       a pull is expensive, and layers without a record are removed
//	sandboxes, containers    Keep: may be lost       the pod ends with the power; what is left of it is swept
//	exits (exit.json)        as containers           a client that has not been told runs the pod again, as after
//	                                                 the loss of a machine
//	freezes                  Keep: may be lost       nothing stays frozen
//	network attachments      may be lost (network)   the pod's addresses end with it; the start frees the rest
//	boot.json                synced                  whether the machine was restarted
//
// A kept record that was not written out is lost whole or has its former state; a part of it counts
// as lost. The kernel writes it out within some 30 seconds, and when the machine is shut down.
//
//	<dir>/<kind>/<id>/record.json   {"version":1,"checksum":"sha256:…","payload":…}
//	<dir>/quarantine/               records that did not decode, moved aside
//	<dir>/boot.json                 boot id and clean-shutdown mark
//	<state>/boot-id                 boot id, in case boot.json is damaged
//
// A record that fails its checksum is moved aside and logged, and never stops the daemon: the
// owner of the kind finds what the record referred to by sweeping. The owner also keeps files of
// its own in the record's directory; Remove removes all of them.
//
// If a record is intact but has a later version, Open fails and changes nothing: a downgrade
// from a newer crispd must not look like damage (record.go).
//
// An interrupted Save or Keep leaves the old record, or a directory without one. A Remove interrupted
// by a power cut may leave the record: removals are not synced, because removing it again costs
// less than waiting for the disk each time.
package checkpoint

import (
	"fmt"
	"log/slog"
	"sync"

	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/kernel"
)

// A Manager stores the records below one directory. Its methods may be called concurrently, but
// not for the same record.
type Manager struct {
	dir    string
	state  string
	bootID string
	boot   Boot
	log    *slog.Logger
	kinds  sync.Map // directories of kinds whose entries have been synced
}

// Open creates dir if it does not exist (mode 0700) and determines from <dir>/boot.json what
// happened since the last Open; if that file is damaged, from the boot ID below state, an existing
// directory that a reboot may empty ("" = none). The error is fault.WrongState if a newer crispd has
// written one of the records; then nothing is changed, not even boot.json.
func Open(dir, state string, log *slog.Logger) (*Manager, error) {
	bootID, err := kernel.BootID()
	if err != nil {
		return nil, err
	}
	return open(dir, state, bootID, log)
}

func open(dir, state, bootID string, log *slog.Logger) (*Manager, error) {
	if err := atomicfile.MakeDirs(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make record directory: %w", err)
	}
	m := &Manager{dir: dir, state: state, bootID: bootID, log: log}
	if err := m.refuseNewer(); err != nil {
		return nil, err
	}
	if err := m.readBoot(); err != nil {
		return nil, err
	}
	return m, nil
}
