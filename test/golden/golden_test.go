package golden

import (
	"os"
	"path/filepath"
	"testing"
)

// A record is a testing.TB that only records a failure.
type record struct {
	testing.TB
	failed bool
}

func (r *record) Helper()               {}
func (r *record) Errorf(string, ...any) { r.failed = true }
func (r *record) Fatalf(string, ...any) { r.failed = true; panic(r) }

// A golden file that is missing or differs is a failure, and only -update writes it.
func TestCheck(t *testing.T) {
	path := filepath.Join(t.TempDir(), "golden")
	failed := func(got string) bool {
		r := &record{TB: t}
		func() {
			defer func() { recover() }()
			Check(r, path, got)
		}()
		return r.failed
	}
	if !failed("a") {
		t.Error("a missing file is no failure")
	}
	*update = true
	defer func() { *update = false }()
	if failed("a") {
		t.Error("-update does not make the file")
	}
	*update = false
	if failed("a") || !failed("b") {
		t.Error("the golden file's own content fails, or another one does not")
	}
	if data, _ := os.ReadFile(path); string(data) != "a" {
		t.Errorf("without -update the file was written: %q", data)
	}
}
