package checkpoint

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/fault"
)

const (
	recordFile = "record.json"
	quarantine = "quarantine"
)

// Keep writes v, as JSON, as the record id of kind: it survives the end of every process, but a
// power cut may take it. The error is that of Save.
func (m *Manager) Keep(kind, id string, v any) error {
	dir, err := m.recordDir(kind, id)
	if err != nil {
		return err
	}
	data, err := encode(v)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = atomicfile.WriteExpendable(filepath.Join(dir, recordFile), data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("save record %s/%s: %w", kind, id, err)
	}
	return nil
}

// Save writes v, as JSON, as the record id of kind and returns once it is on
// disk. The error is fault.Invalid if kind or id is not a plain file name.
func (m *Manager) Save(kind, id string, v any) error {
	dir, err := m.recordDir(kind, id)
	if err != nil {
		return err
	}
	data, err := encode(v)
	if err != nil {
		return fmt.Errorf("save record %s/%s: %w", kind, id, err)
	}
	path := filepath.Join(dir, recordFile)
	_, err = os.Stat(path)
	first := err != nil // or that is unknown
	write := atomicfile.Write
	if errors.Is(err, fs.ErrNotExist) {
		write = atomicfile.WriteNew // see IDs
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("save record %s/%s: %w", kind, id, err)
	}
	named := make(chan error, 1)
	if first {
		go func() { named <- m.syncNames(dir) }() // while the record itself is synced
	} else {
		named <- nil
	}
	err = write(path, data, 0o600)
	if err := errors.Join(err, <-named); err != nil {
		return fmt.Errorf("save record %s/%s: %w", kind, id, err)
	}
	return nil
}

// syncNames syncs the directory of a new record and, once, that of its kind, whichever process
// created them.
func (m *Manager) syncNames(dir string) error {
	kind := filepath.Dir(dir)
	if err := atomicfile.SyncDir(kind); err != nil {
		return err
	}
	if _, ok := m.kinds.Load(kind); ok {
		return nil
	}
	if err := atomicfile.SyncDir(m.dir); err != nil {
		return err
	}
	m.kinds.Store(kind, true)
	return nil
}

// Load decodes the record id of kind into v, ignoring fields that v does not have.
// The error is fault.NotFound if it does not exist, or was corrupt and is now in quarantine, and
// fault.WrongState if a newer crispd wrote it.
func (m *Manager) Load(kind, id string, v any) error {
	dir, err := m.recordDir(kind, id)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, recordFile)
	data, err := atomicfile.Read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fault.NotFound.Errorf("no record %s/%s", kind, id)
	}
	if err != nil && !atomicfile.Damaged(err) {
		return fmt.Errorf("load record %s/%s: %w", kind, id, err)
	}
	var payload json.RawMessage
	if err == nil {
		payload, err = decode(data)
	}
	if err == nil {
		err = json.Unmarshal(payload, v)
	}
	if err := newer(path, err); err != nil {
		return err
	}
	if err != nil {
		m.setAside(kind, id, path, err)
		return fault.NotFound.Errorf("record %s/%s was corrupt: %w", kind, id, err)
	}
	return nil
}

// IDs lists the records of kind in ascending order. It removes the leftovers of interrupted
// Saves and Keeps, which after a power cut include partly written records; it moves corrupt records aside,
// logs them and leaves them out. The error is fault.WrongState for a record of a newer crispd. A
// record that the machine fails to read is an error too: it is not corrupt.
func (m *Manager) IDs(kind string) ([]string, error) {
	if err := plain(kind); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(filepath.Join(m.dir, kind))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list records of %s: %w", kind, err)
	}
	var ids []string
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		dir := filepath.Join(m.dir, kind, e.Name())
		removeTemps(dir)
		data, err := atomicfile.Read(filepath.Join(dir, recordFile))
		if errors.Is(err, fs.ErrNotExist) {
			continue // the first Save was interrupted
		}
		if err != nil && !atomicfile.Damaged(err) {
			return nil, fmt.Errorf("list records of %s: %w", kind, err)
		}
		if err == nil {
			_, err = decode(data)
		}
		if err := newer(filepath.Join(dir, recordFile), err); err != nil {
			return nil, err
		}
		if err != nil && m.boot.Rebooted() && atomicfile.IsPart(data, err) {
			os.Remove(filepath.Join(dir, recordFile)) // its Save did not return, or it was not written out
			continue
		}
		if err != nil {
			m.setAside(kind, e.Name(), filepath.Join(dir, recordFile), err)
			continue
		}
		ids = append(ids, e.Name())
	}
	slices.Sort(ids)
	return ids, nil
}

// Remove deletes the record id of kind and its directory, the record first: a crash in between
// leaves a directory without a record. It is no error if the record does not exist.
func (m *Manager) Remove(kind, id string) error {
	dir, err := m.recordDir(kind, id)
	if err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(dir, recordFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove record %s/%s: %w", kind, id, err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove record %s/%s: %w", kind, id, err)
	}
	return nil
}

// setAside moves a corrupt record to quarantine, where it can be examined.
func (m *Manager) setAside(kind, id, path string, why error) {
	to := filepath.Join(m.dir, quarantine, fmt.Sprintf("%s-%s.%d.json", kind, id, time.Now().UnixNano()))
	err := os.MkdirAll(filepath.Dir(to), 0o700)
	if err == nil {
		err = os.Rename(path, to)
	}
	if err != nil {
		why = errors.Join(why, err)
	}
	m.log.Error("record was corrupt and moved aside", "kind", kind, "id", id, "to", to, "err", why)
}

// removeTemps removes the temporary files of interrupted Saves and Keeps from a record's
// directory, and the draft that earlier releases kept until a sandbox was ready. One that cannot be
// removed does no harm.
func removeTemps(dir string) {
	left, _ := filepath.Glob(filepath.Join(dir, "."+recordFile+".*.tmp"))
	for _, path := range append(left, filepath.Join(dir, "draft.json")) {
		os.Remove(path)
	}
}

func (m *Manager) recordDir(kind, id string) (string, error) {
	if err := errors.Join(plain(kind), plain(id)); err != nil {
		return "", err
	}
	return filepath.Join(m.dir, kind, id), nil
}

// plain refuses names that would leave the directory or look like our own files.
func plain(name string) error {
	if name == "" || name[0] == '.' || name == quarantine || strings.ContainsAny(name, "/\x00") {
		return fault.Invalid.Errorf("%q is not a valid name of a record", name)
	}
	return nil
}

// envelope is the content of a record file. A newer one may have more fields.
type envelope struct {
	Version  int             `json:"version"`
	Checksum string          `json:"checksum"` // of the payload's bytes as they are in the file
	Payload  json.RawMessage `json:"payload"`
}

func encode(v any) ([]byte, error) {
	payload, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	version := 1
	if n, ok := v.(Versioned); ok {
		version = n.RecordVersion()
	}
	// As json.Marshal of an envelope, which would check and copy the payload once more.
	return fmt.Appendf(nil, `{"version":%d,"checksum":%q,"payload":%s}`, version, checksum(payload), payload), nil
}

// A Versioned value is not for every release: an older one would lose something by saving it again
// without the fields that it does not know, or would do harm. Its records have the version that it
// returns, from 1 to the newest that this program reads; those of other values have version 1.
type Versioned interface{ RecordVersion() int }

// decode returns the payload of a record. The error is a newerError, or describes the damage.
// The checksum is verified first: only the version of an intact record can be trusted.
func decode(data []byte) (json.RawMessage, error) {
	var e envelope
	if err := json.Unmarshal(data, &e); err != nil {
		return nil, err
	}
	if got := checksum(e.Payload); got != e.Checksum {
		return nil, fmt.Errorf("record has checksum %s: expected %.71q", got, e.Checksum)
	}
	if e.Version > newest {
		return nil, &newerError{e.Version}
	}
	if e.Version < 1 {
		return nil, fmt.Errorf("record has version %d", e.Version)
	}
	return e.Payload, nil
}

func checksum(payload []byte) string {
	sum := sha256.Sum256(payload)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// newest is the newest version of records that this program reads. Version 2 is for sandboxes with
// a shim, which an older release would run by libcontainer, version 3 for those that a shim has made by its
// Sandbox API. Whatever the version, a record has the
// envelope's three fields, and the checksum covers the payload's bytes, so every release can tell a
// newer record from a damaged one.
const newest = 3

// A newerError describes an intact record of a later version. It is not corrupt, and its object
// is alive: the reader must neither move it nor sweep.
type newerError struct{ version int }

func (e *newerError) Error() string {
	return fmt.Sprintf("it has version %d and was written by a newer crispd; this one reads up to version %d", e.version, newest)
}

// newer returns the error for a newer record at path, or nil if err is any other error.
func newer(path string, err error) error {
	n, ok := errors.AsType[*newerError](err)
	if !ok {
		return nil
	}
	return fault.WrongState.Errorf("record %s: %w: nothing was changed; start the newer crispd again", path, n)
}

// refuseNewer fails if any record of any kind is newer than this program. The daemon must not
// start then: it would treat the record's containers as leaked.
func (m *Manager) refuseNewer() error {
	paths, err := filepath.Glob(filepath.Join(m.dir, "*", "*", recordFile))
	if err != nil {
		return err
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			_, err = decode(data)
		}
		if err := newer(path, err); err != nil {
			return err
		}
	}
	return nil
}
