package layer

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
	"golang.org/x/sys/unix"
)

// newDirs returns an unpacker of an empty layer, for tests of its directories.
func newDirs(t *testing.T) *unpacker {
	t.Helper()
	dir := t.TempDir()
	root, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	u := newUnpacker(t.Context(), root, dir)
	t.Cleanup(u.dirs.close)
	return u
}

// A layer that alternates between more deep directories than are kept open costs time in
// proportion to its entries, not to entries times depth: otherwise a few KB of it could
// occupy a processor for hours.
func TestDeepDirectoriesInTurns(t *testing.T) {
	needRoot(t)
	const rounds = 3
	deep := strings.Repeat("d/", 1000)
	for what, top := range map[string]string{"directories": deep, "through a link": "link/" + deep[len("d/d/"):]} {
		t.Run(what, func(t *testing.T) {
			u := newDirs(t)
			if err := unix.Symlinkat("d/d", u.dirs.root, "link"); err != nil {
				t.Fatal(err)
			}
			for round := range rounds {
				begin := u.dirs.opens
				for i := range 2 * maxDirs {
					if _, err := u.dirs.get(fmt.Sprintf("%s%d", top, i)); err != nil {
						t.Fatal(err)
					}
				}
				per := float64(u.dirs.opens-begin) / (2 * maxDirs)
				if round > 0 && per > 3 { // the first round makes them
					t.Errorf("round %d: %.1f opens for each directory, want a few", round, per)
				}
				if round == 0 && per > 40 {
					t.Errorf("%.1f opens for each new directory, want a few more than for an existing one", per)
				}
			}
		})
	}
}

// A layer that makes a name a directory and a file in turns causes no search among all
// other names of the layer: which names no longer count is determined once, at the end. So
// each name is kept, and its memory counted, once.
func TestDirectoryAndFileInTurns(t *testing.T) {
	needRoot(t)
	const turns, many = 100, 1000
	u := newDirs(t)
	add := func(kind byte, format string, args ...any) {
		t.Helper()
		hdr := &tar.Header{Name: fmt.Sprintf(format, args...), Typeflag: kind, Mode: 0o755, ModTime: time.Unix(1, 0)}
		if err := u.entry(t.Context(), hdr, strings.NewReader("")); err != nil {
			t.Fatal(err)
		}
	}
	for i := range many {
		add(tar.TypeDir, "other/%d", i)
	}
	var opens, room int
	for turn := range turns {
		add(tar.TypeDir, "x")
		add(tar.TypeDir, "x/y")
		add(tar.TypeReg, "x")
		if turn == 0 {
			opens, room = u.dirs.opens, u.dirs.room.used
		}
	}
	if got := len(u.times); got != many+2 || u.dirs.room.used != room {
		t.Errorf("%d names are kept, want %d; the last turns took %d bytes for names that were known", got, many+2, u.dirs.room.used-room)
	}
	if per := float64(u.dirs.opens-opens) / (turns - 1); per > 3 {
		t.Errorf("%.1f opens for each turn, want a few", per)
	}
	if err := u.setTimes(); err != nil {
		t.Fatal(err)
	}
	if u.dirs.marks != 1 { // "other"
		t.Errorf("%d directories are marked as without an entry", u.dirs.marks)
	}
}

// Dangling symlinks are resolved step by step, and a layer can need any number of steps.
func TestDanglingLinksWithoutEnd(t *testing.T) {
	needRoot(t)
	var lines strings.Builder
	target := strings.Repeat("d/", 200)
	fmt.Fprintf(&lines, "d 755 %s\n", target)
	for i := range maxLookups/200 + 2 {
		fmt.Fprintf(&lines, "l 777 l%d %sx%d\n- 600 l%d/f 1\n", i, target, i, i)
	}
	_, err := unpack(t.Context(), bytes.NewReader(archiveOf(t, lines.String())), t.TempDir(), new(growth))
	if !errors.Is(err, fault.Invalid) || !strings.Contains(fmt.Sprint(err), "steps") {
		t.Errorf("error is %v, want one that blames the layer", err)
	}
}

// The names of directories and whiteouts are in memory while a layer is unpacked, and a
// layer of a few MB can have gigabytes of them.
func TestNamesOfLayerAreBounded(t *testing.T) {
	needRoot(t)
	for what, entry := range map[string]string{
		"directories": "d 755 x%d",
		"whiteouts":   "- 0 .wh.x%d",
	} {
		t.Run(what, func(t *testing.T) {
			u := newDirs(t)
			u.dirs.room = memory.room(100 * (nameCost + 8))
			var lines strings.Builder
			for i := range 200 {
				fmt.Fprintln(&lines, strings.ReplaceAll(entry, "%d", fmt.Sprint(i)))
			}
			tr := tar.NewReader(bytes.NewReader(archiveOf(t, lines.String())))
			var err error
			var n int
			for ; err == nil; n++ {
				var hdr *tar.Header
				if hdr, err = tr.Next(); err == nil {
					err = u.entry(t.Context(), hdr, tr)
				}
			}
			if !errors.Is(err, fault.Invalid) || n < 100 {
				t.Errorf("entry %d: error is %v, want one that blames the layer, past the bound", n, err)
			}
		})
	}
}
