package filetrace

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func lines(ops []Op) []string {
	var all []string
	for _, op := range ops {
		line := string(op.Kind) + " " + op.Path
		if op.To != "" {
			line += " " + op.To
		}
		switch op.Kind {
		case Write:
			line += fmt.Sprintf(" %d+%q=%d", op.Off, op.Data, op.Size)
		case Meta:
			line += fmt.Sprintf(" %o", op.File.Mode&0o7777)
		case Marked:
			line = "mark " + op.Text
		}
		all = append(all, line)
	}
	return all
}

// Other packages' power cut tests depend on this record.
func TestRecord(t *testing.T) {
	dir := t.TempDir()
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	path := func(name string) string { return filepath.Join(dir, name) }
	tr := Start(t, dir)
	ok(os.WriteFile(path("a"), []byte("one"), 0o600))
	f, err := os.OpenFile(path("a"), os.O_RDWR, 0)
	ok(err)
	_, err = f.WriteAt([]byte("N"), 1)
	ok(err)
	_, err = f.Seek(0, 2)
	ok(err)
	_, err = f.WriteString("!")
	ok(err)
	ok(f.Truncate(2))
	ok(f.Chmod(0o640))
	ok(f.Sync())
	ok(f.Close())
	tr.Mark("half way")
	ok(os.Mkdir(path("d"), 0o755))
	ok(os.Rename(path("a"), path("d/b")))
	ok(os.Link(path("d/b"), path("c")))
	ok(os.Symlink("there", path("s")))
	fd, err := unix.Open(dir, unix.O_RDWR|unix.O_TMPFILE, 0o600)
	ok(err)
	_, err = unix.Write(fd, []byte("nameless"))
	ok(err)
	ok(unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, path("t"), unix.AT_SYMLINK_FOLLOW))
	ok(unix.Syncfs(fd))
	ok(unix.Close(fd))
	from, err := os.Open(path("t"))
	ok(err)
	to, err := os.Create(path("copy"))
	ok(err)
	_, err = to.ReadFrom(from)
	ok(err)
	ok(errors.Join(from.Close(), to.Close()))
	ok(os.WriteFile(path("t"), nil, 0))
	ok(os.Remove(path("c")))
	ok(os.RemoveAll(path("d")))
	d, err := os.Open(dir)
	ok(err)
	ok(d.Sync())
	ok(d.Close())
	if os.Mkdir(path("s"), 0o700) == nil || os.Remove(path("not there")) == nil {
		t.Error("there is a link of that name")
	}
	got := lines(tr.Stop())
	for i := range got {
		got[i] = strings.Replace(got[i], filepath.Base(dir), "DIR", 1)
	}
	want := strings.Split(strings.TrimSpace(`
create a
write a 0+"one"=3
write a 1+"N"=3
write a 3+"!"=4
write a 0+"oN"=2
meta a 640
fsync a
mark half way
mkdir d
rename a d/b
link d/b c
symlink s
tmpfile .
write # 0+"nameless"=8
link # t
syncfs #
create copy
write copy 0+"nameless"=8
write t 0+""=0
remove c
remove d/b
remove d
fsync .`), "\n")
	for i := range got {
		if f := strings.Fields(got[i]); len(f) > 1 && strings.HasPrefix(f[1], "#") {
			got[i] = strings.Replace(got[i], f[1], "#", 1)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want, got:\n%s", diff)
	}
}

// Concurrent calls of many threads are recorded in their order: a name is made before it is
// removed.
func TestRecordOfManyThreads(t *testing.T) {
	dir := t.TempDir()
	tr := Start(t, dir)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 30 {
				name := filepath.Join(dir, fmt.Sprintf("%d-%d", i, j))
				if err := os.WriteFile(name, []byte(name), 0o600); err != nil {
					t.Error(err)
				}
				if err := os.Remove(name); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	there := map[string]bool{}
	n := 0
	for _, op := range tr.Stop() {
		switch op.Kind {
		case Create:
			there[op.Path] = true
		case Write:
			if string(op.Data) != filepath.Join(dir, op.Path) {
				t.Errorf("%s has %q", op.Path, op.Data)
			}
		case Remove:
			if !there[op.Path] {
				t.Errorf("%s was removed before it was made", op.Path)
			}
			delete(there, op.Path)
			n++
		}
	}
	if n != 8*30 || len(there) != 0 {
		t.Errorf("%d files were removed, %d remain: want 240, 0", n, len(there))
	}
}

// Exactly the n-th call fails.
func TestArm(t *testing.T) {
	dir := t.TempDir()
	tr := Start(t, dir)
	seen := map[string]bool{}
	n := 1
	for ; ; n++ {
		path := filepath.Join(dir, fmt.Sprint(n))
		tr.Arm(n, unix.ENOSPC)
		err := os.WriteFile(path, []byte("x"), 0o600)
		f := tr.Disarm()
		if !f.Happened {
			if err != nil || f.Count != n-1 {
				t.Errorf("nothing failed: %v, %d calls", err, f.Count)
			}
			break
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Errorf("%s: got %v", f.What, err)
		}
		_, err = os.Stat(path)
		verb, _, _ := strings.Cut(f.What, " ")
		if there := err == nil; there != (verb != "openat") {
			t.Errorf("%s: file is there: %v", f.What, there)
		}
		seen[verb] = true
	}
	if diff := cmp.Diff(map[string]bool{"openat": true, "write": true, "close": true}, seen); diff != "" {
		t.Error(diff)
	}
}

// Writes through a mapping would be missing from the record, so the mapping is reported.
func TestMappingIsReported(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "mapped"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(4096); err != nil {
		t.Fatal(err)
	}
	tr := Start(t, dir)
	b, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(b)
	mark("stop")
	if m := tr.receive(); !strings.Contains(m.Err, "mapped") {
		t.Errorf("got %+v", m)
	}
}
