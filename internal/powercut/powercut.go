// Package powercut tests what is left of files when the power is cut. It is for tests
// only.
//
// A Case runs code that keeps files below a directory and says "that is safe now". Each
// of its file operations is recorded (internal/filetrace), and then three things are
// held against the record:
//
//   - Its transcript is a golden file, testdata/powercut/<name>.txt. A sync that is gone,
//     or a step that is before another, is a difference that a reviewer sees.
//     With -update (internal/golden) it is written anew.
//   - Each disk that a power cut may leave is made, after each operation, and handed to
//     Check: what was safe has to be there and whole, and the rest is no harm.
//   - For each sync, all that once more as if that sync had not been: Check has to notice,
//     or the sync is in vain. One that is, is in Redundant, with a reason.
//
// # What a power cut may leave
//
// The model is meaner than ext4 and xfs, but not as mean as POSIX allows. Relied upon is:
//
//   - After fsync(2) or fdatasync(2) of a file, its content, size, mode, owner and extended
//     attributes are on disk, but not its name. After fsync(2) of a directory, its names
//     are. After syncfs(2), all is.
//   - Names in one directory reach the disk in the order in which they were given and
//     taken. Between directories there is no order. That of ext4 and xfs is stricter: their
//     journals have one for the whole file system.
//   - rename(2) is one step, also from one directory to another, and also if it replaces
//     something: its names are both as before or both as after it. Both file systems write
//     it in one transaction, so syncing either directory is enough.
//   - A name on disk always leads to the file that it was given to. What has no name on
//     disk is gone, with all that is below it.
//
// Of a file that was not synced since it was changed there may be on disk: what was synced
// last, perhaps nothing; all; half of the last write; as many zeroes as it is long, the
// state that is known from files that were renamed and not synced; all but its new mode,
// owner and attributes. Not modelled are damage to what was synced, a disk that says
// "written" too early, and blocks of one write that arrive in another order.
//
// At each operation all combinations are tried if they are few; else each file and
// directory in each of its states among others that have lost all, and among others that
// have lost nothing, and some at random, always the same. CRISP_POWERCUT=full tries more.
package powercut

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/crisp-cri/crisp/internal/filetrace"
	"github.com/crisp-cri/crisp/internal/golden"
)

// A Case is some work on files and what must be left of it.
type Case struct {
	Name string // of the transcript

	// Dir has in it what is on disk before Run, all of it synced. "": an empty directory
	// of the case's own.
	Dir string

	// Run works in dir and calls safe whenever something must outlast a power cut from
	// then on.
	Run func(dir string, safe func(what string))

	// Check opens what is in dir, one of the disks that a power cut may leave, and says
	// what is wrong with it. safe is what Run had called safe by then. It may change dir.
	Check func(dir string, safe []string) error

	// Redundant has a reason for each sync that no Check misses, by its line in the
	// transcript, with " #2" and so on from its second time on.
	Redundant map[string]string

	// Lane separates the concurrent operations of Run: the transcript has one lane after the
	// other. "": operations before such a one are done before it, and those after it later.
	Lane func(op filetrace.Op) string

	// Ignore leaves out operations that do not matter, for instance what others write in the
	// directory, and what Run does in the background without waiting for it.
	Ignore func(op filetrace.Op) bool

	// Rename gives paths the form that they have in the transcript, if there is something
	// random in them besides temporary files, IDs and staging.
	Rename func(path string) string
}

// Test runs c.
func (c Case) Test(t *testing.T) {
	t.Helper()
	if c.Dir == "" {
		c.Dir = t.TempDir()
	}
	before, err := snapshot(c.Dir)
	if err != nil {
		t.Fatal(err)
	}
	tracer := filetrace.Start(t, c.Dir)
	c.Run(c.Dir, tracer.Mark)
	if t.Failed() {
		return
	}
	ops := tracer.Stop()
	if c.Ignore != nil {
		ops = slices.DeleteFunc(ops, c.Ignore)
	}
	script := c.transcript(ops)
	golden.Check(t, filepath.Join("testdata", "powercut", c.Name+".txt"), script.text)
	d, err := newDisk(before, ops)
	if err != nil {
		t.Fatal(err)
	}
	e := newEnumeration(c, d, script, room(t))
	faults := e.all()
	if len(faults) == 0 {
		faults = e.without()
	}
	for _, f := range faults {
		t.Error(f)
	}
	t.Logf("%d operations, %d different disks", len(ops), len(e.known))
}

// room is where the disks are made: in memory, where a sync costs nothing.
func room(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "powercut-*")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}
