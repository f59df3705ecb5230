package layer

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/internal/tree"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// writtenAs returns the tar stream of a layer's files at dir.
func writtenAs(t testing.TB, dir string, sh shape) []byte {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var buf bytes.Buffer
	if err := writeLayer(t.Context(), fd, sh, &buf); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// details lists what listing leaves out: owners, times, link counts and all attributes.
func details(t testing.TB, dir string) (list []string) {
	t.Helper()
	err := tree.Walk(t.Context(), dir, tree.Options{Sorted: true}, func(f *tree.File) error {
		path := filepath.Join(dir, f.Path())
		line := fmt.Sprintf("%q %o %d:%d", f.Path(), f.Stat.Mode, f.Stat.Uid, f.Stat.Gid)
		if !f.IsDir() {
			line += fmt.Sprintf(" %d names", f.Stat.Nlink)
		}
		isMark := f.Stat.Mode&unix.S_IFMT == unix.S_IFCHR && f.Stat.Rdev == 0
		if f.Stat.Mtim.Sec < 1_600_000_000 && !isMark { // a later time is that of a directory without an entry
			line += fmt.Sprintf(" at %d.%09d", f.Stat.Mtim.Sec, f.Stat.Mtim.Nsec)
		}
		keys, value := make([]byte, 4096), make([]byte, 4096)
		n, err := unix.Llistxattr(path, keys)
		if err != nil {
			return err
		}
		for _, key := range slices.Sorted(strings.SplitSeq(strings.Trim(string(keys[:n]), "\x00"), "\x00")) {
			if key == "" || key == "security.selinux" {
				continue
			}
			n, err := unix.Lgetxattr(path, key, value)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %s=%q", key, value[:n])
		}
		list = append(list, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// all has every kind of file, and everything that a layer can change about those below.
const all = `
	d 1777 .
	d 2755 dir
	- 4711 dir/program;user.note=hello x y
	h 0 dir/second dir/program
	h 0 a-third dir/program
	- 644 empty
	l 777 dir/link /somewhere/else
	p 622 dir/pipe
	c 666 dir/null 1,3
	b 660 dir/disk 8,0
	d 700 hides
	- 0 hides/.wh..wh..opq
	- 600 hides/x 1
	- 0 .wh.gone
	- 0 dir/.wh.gone
	- 600 no/entry/file 1
	- 0 no/below/.wh..wh..opq
	- 0 .wh.again
	- 600 again/x 1`

// A layer that is written as a tar stream and unpacked again is the same layer, in either
// form, and gives the same stream again.
func TestWrite(t *testing.T) {
	needRoot(t)
	long := strings.Repeat("n", 200)
	for _, c := range []struct{ name, tar string }{
		{"everything", all},
		{"no entry for the root", "- 644 a x"},
		{"the root hides all", "- 0 .wh..wh..opq\n- 644 a x"},
		{"nothing", ""},
		{"long names", "- 644 " + strings.Repeat(long+"/", 5) + long + " x\nl 777 link " + strings.Repeat(long+"/", 5)},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachForm(t, func(t *testing.T, form form) {
				first, second := t.TempDir(), t.TempDir()
				sh, err := form.unpack(t, bytes.NewReader(archiveOf(t, c.tar)), first)
				if err != nil {
					t.Fatal(err)
				}
				stream := writtenAs(t, first, sh)
				again, err := form.unpack(t, bytes.NewReader(stream), second)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(listing(t, first), listing(t, second)); diff != "" {
					t.Errorf("tree (-before +after):\n%s", diff)
				}
				if diff := cmp.Diff(details(t, first), details(t, second)); diff != "" {
					t.Errorf("attributes (-before +after):\n%s", diff)
				}
				if diff := cmp.Diff(sh, again); diff != "" {
					t.Errorf("shape (-before +after):\n%s", diff)
				}
				if !bytes.Equal(writtenAs(t, second, again), stream) {
					t.Error("the layer of the stream makes another stream")
				}
			})
		})
	}
}

// Both forms of a layer give the same stream, whose entries have the image spec's whiteout
// names.
func TestWriteEntries(t *testing.T) {
	needRoot(t)
	want := strings.Fields(`./ a-third again/.wh..wh..opq again/x dir/ dir/disk dir/.wh.gone dir/link dir/null
		dir/pipe dir/program dir/second empty .wh.gone hides/ hides/.wh..wh..opq hides/x no/below/.wh..wh..opq no/entry/file`)
	eachForm(t, func(t *testing.T, form form) {
		dir := t.TempDir()
		sh, err := form.unpack(t, bytes.NewReader(archiveOf(t, all)), dir)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for tr := tar.NewReader(bytes.NewReader(writtenAs(t, dir, sh))); ; {
			hdr, err := tr.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, hdr.Name)
			for key := range hdr.PAXRecords {
				if strings.HasPrefix(key, "SCHILY.xattr."+overlayPrefix) {
					t.Errorf("%s has overlayfs's own %s", hdr.Name, key)
				}
			}
		}
		if diff := cmp.Diff(want, names); diff != "" {
			t.Errorf("entries (-want +got):\n%s", diff)
		}
	})
}

// A caller that gives up ends the writing in the middle of a file.
func TestWriteIsCancelled(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	sh, err := unpack(t.Context(), bytes.NewReader(archiveOf(t, "- 644 a "+strings.Repeat("x", 4<<20))), dir, new(growth))
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	ctx, cancel := context.WithCancel(t.Context())
	written := 0
	err = writeLayer(ctx, fd, sh, writeFunc(func(p []byte) (int, error) {
		if written += len(p); written > 4096 {
			cancel()
		}
		return len(p), nil
	}))
	if !errors.Is(err, context.Canceled) || written > 4<<20 {
		t.Errorf("%d bytes were written; %v", written, err)
	}
}

type writeFunc func([]byte) (int, error)

func (f writeFunc) Write(p []byte) (int, error) { return f(p) }
