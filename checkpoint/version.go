package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/crisp-cri/crisp/internal/fault"
)

// version is the version of the records that this program writes, and the newest that it reads.
// Raise it when an older release would lose something by saving a record again without the
// fields it does not know. Whatever the version, a record has the envelope's three fields, and
// the checksum covers the payload's bytes, so every release can tell a newer record from a
// damaged one.
const version = 1

// A newerError describes an intact record of a later version. It is not corrupt, and its object
// is alive: the reader must neither move it nor sweep.
type newerError struct{ version int }

func (e *newerError) Error() string {
	return fmt.Sprintf("it has version %d and was written by a newer crispd; this one reads up to version %d", e.version, version)
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
	paths, err1 := filepath.Glob(filepath.Join(m.dir, "*", "*", recordFile))
	drafts, err2 := filepath.Glob(filepath.Join(m.dir, "*", "*", draftFile))
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	for _, path := range append(paths, drafts...) {
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
