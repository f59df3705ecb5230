// Package powercut tests which files survive a power cut. It is for tests only.
//
// A Case runs code that keeps files below a directory and calls safe when something must
// survive. Each of its file operations is recorded (test/filetrace), and then the
// record is checked in three ways:
//
//   - Its transcript is a golden file, testdata/powercut/<name>.txt. A sync that is gone, or a
//     different order of steps, is a difference that a reviewer sees. -update (test/golden)
//     rewrites it.
//   - Each disk that a power cut may leave is made, after each operation, and passed to Check: what was
//     safe must be there and complete, and the rest must do no harm.
//   - For each sync, all of that is repeated as if that sync had not happened: Check must notice, or
//     the sync is useless. A useless sync is listed in Redundant, with a reason.
//
// # What a power cut may leave
//
// The model is stricter than ext4 and xfs, but not as strict as POSIX allows. It relies on
// this:
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
// A file that was not synced since it was changed may have on disk: what was synced last,
// perhaps nothing; everything; half of the last write; zeroes of its whole length, which is
// known from files that were renamed and not synced; everything but its new mode, owner and
// attributes. Not modelled are damage to synced data, a disk that reports "written" too
// early, and blocks of one write that arrive in another order.
//
// At each operation all combinations are tried if they are few; otherwise each file and
// directory in each of its states among others that have lost everything, and among others
// that have lost nothing, and some at random, always the same. CRISP_POWERCUT=full tries
// more.
package powercut

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/crisp-cri/crisp/test/filetrace"
	"github.com/crisp-cri/crisp/test/golden"
)

// A Case is some work on files and what must remain of it.
type Case struct {
	Name string // of the transcript

	// Dir has what is on disk before Run, all of it synced. "": an empty directory of the
	// case's own.
	Dir string

	// Run works in dir and calls safe whenever something must survive a power cut from then
	// on.
	Run func(dir string, safe func(what string))

	// Check opens what is in dir, one of the disks that a power cut may leave, and returns
	// what is wrong with it. safe are Run's calls of safe by then. It may change dir.
	Check func(dir string, safe []string) error

	// OnDisk has the disks made in the directory of temporary files, and not in memory.
	OnDisk bool

	// Redundant has a reason for each sync whose absence Check does not notice, by its line
	// in the transcript, with " #2" and so on for repeated lines.
	Redundant map[string]string

	// Lane separates the concurrent operations of Run: the transcript has one lane after the
	// other. "": operations before such a one are done before it, and those after it later.
	Lane func(op filetrace.Op) string

	// Ignore leaves out irrelevant operations, for instance those of others in the
	// directory, and those that Run does in the background without waiting for them.
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
	e := newEnumeration(c, d, script, room(t, c.OnDisk))
	faults := e.all()
	if len(faults) == 0 {
		faults = e.without()
	}
	for _, f := range faults {
		t.Error(f)
	}
	t.Logf("%d operations, %d different disks", len(ops), len(e.known))
}

// room returns where the disks are made: in memory, where a sync costs nothing, if that will do.
func room(t *testing.T, onDisk bool) string {
	if onDisk {
		return t.TempDir()
	}
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
