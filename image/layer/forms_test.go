package layer

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/crisp-cri/crisp/image/erofs"
	"github.com/crisp-cri/crisp/test/testenv"
	"golang.org/x/sys/unix"
)

// A form is one of the ways to keep a layer; all must hold the same files.
type form struct {
	name string
	// unpack makes the layer in r appear at dir, an empty directory, until the test ends.
	unpack func(t testing.TB, r io.Reader, dir string) (shape, error)
}

var (
	asDirectory = form{"directory", func(t testing.TB, r io.Reader, dir string) (shape, error) {
		return unpack(t.Context(), r, dir, new(growth))
	}}
	asEROFS = form{"EROFS", func(t testing.TB, r io.Reader, dir string) (shape, error) {
		t.Helper()
		f, err := os.Create(filepath.Join(t.TempDir(), "layer.erofs"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		sh, _, err := pack(t.Context(), r, f, erofs.UUID{1}, new(growth))
		if err != nil {
			return sh, err
		}
		mnt, err := erofs.Mount(f.Name(), "")
		if err != nil {
			t.Fatalf("what was packed cannot be mounted: %v", err)
		}
		defer unix.Close(mnt)
		if err := unix.MoveMount(mnt, "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(dir, 0); err != nil {
				t.Errorf("unmount: %v", err)
			}
		})
		return sh, nil
	}}
)

// eachForm runs a test with each form that the kernel supports.
func eachForm(t *testing.T, f func(t *testing.T, form form)) {
	t.Run(asDirectory.name, func(t *testing.T) { f(t, asDirectory) })
	t.Run(asEROFS.name, func(t *testing.T) {
		needEROFS(t)
		f(t, asEROFS)
	})
}

// mountsEROFS reports whether EROFS can be mounted here, for tests that check more where it
// can.
func mountsEROFS() bool { return testenv.Lacks("erofs") == "" }

func needEROFS(t testing.TB) {
	t.Helper()
	testenv.Need(t, "erofs")
}
