package regular_test

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/crisp-cri/crisp/internal/regular"
	"golang.org/x/sys/unix"
)

// Only regular files can be opened, and nothing blocks; symlinks are followed where that is
// permitted.
func TestOpen(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.Mkdir(in("below"), 0o700), os.WriteFile(in("secret"), []byte("secret"), 0o600), os.WriteFile(in("below/file"), []byte("text"), 0o600),
		os.Mkdir(in("below/dir"), 0o700), unix.Mkfifo(in("below/fifo"), 0o600),
		os.Symlink("file", in("below/link")), os.Symlink("fifo", in("below/to-fifo")), os.Symlink("../secret", in("below/out")), os.Symlink(in("secret"), in("below/far")),
		os.Symlink("nowhere", in("below/dangling"))); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", in("below/socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	names := map[string][3]error{ // results of Open, OpenNoLink, OpenBeneath
		"file":     {},
		"dir":      {regular.ErrOther, regular.ErrOther, regular.ErrOther},
		"fifo":     {regular.ErrOther, regular.ErrOther, regular.ErrOther},
		"socket":   {regular.ErrOther, regular.ErrOther, regular.ErrOther},
		"link":     {nil, regular.ErrOther, nil},
		"to-fifo":  {regular.ErrOther, regular.ErrOther, regular.ErrOther},
		"out":      {nil, regular.ErrOther, unix.EXDEV},
		"far":      {nil, regular.ErrOther, unix.EXDEV},
		"dangling": {fs.ErrNotExist, regular.ErrOther, fs.ErrNotExist},
		"none":     {fs.ErrNotExist, fs.ErrNotExist, fs.ErrNotExist},
	}
	if unix.Mknod(in("below/null"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))) == nil { // as root
		names["null"] = [3]error{regular.ErrOther, regular.ErrOther, regular.ErrOther}
	}
	for name, want := range names {
		path := in("below/" + name)
		for i, open := range []func() (*os.File, error){
			func() (*os.File, error) { return regular.Open(path) },
			func() (*os.File, error) { return regular.OpenNoLink(path) },
			func() (*os.File, error) { return regular.OpenBeneath(in("below"), name) },
		} {
			f, err := open()
			if f != nil {
				if data, rerr := regular.ReadAll(f, 6); rerr != nil || len(data) < 4 {
					t.Errorf("%s by way %d: %q, %v", name, i, data, rerr)
				}
				f.Close()
			}
			if !errors.Is(err, want[i]) {
				t.Errorf("%s by way %d: %v, want %v", name, i, err, want[i])
			}
		}
	}
}

// A file of exactly the maximum size is read; a larger one is an error, not
// truncated.
func TestReadAll(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	for most, want := range map[int64]string{4: "", 5: "12345", 6: "12345"} {
		f, err := regular.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		data, err := regular.ReadAll(f, most)
		f.Close()
		if string(data) != want || (err == nil) != (want != "") {
			t.Errorf("of at most %d bytes: %q, %v", most, data, err)
		}
	}
}
