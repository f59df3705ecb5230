// Package golden has the one flag -update of the tests. A test that compares what it
// made with a file of the tree writes that file instead when it is given:
//
//	go test ./server/spec -update
//	git diff
//
// It is for tests only. docs/hacking.md lists the packages that know the flag.
package golden

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
)

var update = flag.Bool("update", false, "write the golden files of the package instead of comparing with them")

// Update reports whether -update was given.
func Update() bool { return *update }

// Cases runs a subtest for each testdata/*.txtar of the package, at least ten. The file has the
// input and the result; made returns the file with the current result.
func Cases(t *testing.T, made func(t *testing.T, archive *txtar.Archive) *txtar.Archive) {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d cases in testdata, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			Check(t, file, string(txtar.Format(made(t, archive))))
		})
	}
}

// Check fails t if the file at path does not hold got. With -update it writes the file,
// and makes its directory.
func Check(t testing.TB, path, got string) {
	t.Helper()
	if *update {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(got), 0o644)); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (run with -update to make it)", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s is not what it would be now (-have +now); if the change is meant, run with -update and read git diff:\n%s", path, diff)
	}
}
