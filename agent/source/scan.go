package source

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/crisp-cri/crisp/internal/filelease"
	"github.com/crisp-cri/crisp/internal/regular"
	"golang.org/x/sys/unix"
)

type cached struct {
	sum     [sha256.Size]byte
	file    File
	writing bool // a program had it open for writing at the last scan
}

// unfinished reports whether a program had a file open for writing at the last scan.
func (d *Dir) unfinished() bool {
	for _, c := range d.last {
		if c.writing {
			return true
		}
	}
	return false
}

// unmounted returns an error if all manifests are gone and the directory is on another file system
// than before. Then a file system was unmounted, and no manifest was removed.
func (d *Dir) unmounted(entries []fs.DirEntry) error {
	var s unix.Stat_t
	if err := unix.Stat(d.Path, &s); err != nil {
		return fmt.Errorf("%s: %w", d.Path, err)
	}
	empty := !slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return isManifest(e.Name()) })
	if empty && len(d.last) > 0 && s.Dev != d.dev {
		return fmt.Errorf("%s: its manifests are on a file system that is not mounted any more", d.Path)
	}
	d.dev = s.Dev
	return nil
}

// scan reads the directory and reports whether it differs from the last scan. It decodes only files
// whose content has changed. A known file that a program is writing stays as it was.
func (d *Dir) scan() (files []File, differ bool, err error) {
	entries, err := os.ReadDir(d.Path)
	if err != nil {
		return nil, false, err
	}
	if err := d.unmounted(entries); err != nil {
		return nil, false, err
	}
	now := map[string]cached{}
	for _, e := range entries {
		if !isManifest(e.Name()) || e.IsDir() {
			continue
		}
		path := filepath.Join(d.Path, e.Name())
		data, err := read(path)
		c, known := d.last[path]
		writing := errors.Is(err, errWriting)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed after ReadDir, or a dangling link
		}
		sum := sha256.Sum256(data)
		if err != nil {
			sum = sha256.Sum256([]byte(err.Error()))
		}
		if !known || c.sum != sum && !writing {
			differ = true
			var last *File
			if known {
				last = &c.file
			}
			c = cached{sum: sum, file: d.Copies.load(path, data, err, last, d.Decode)}
		}
		c.writing = writing
		now[path] = c
		files = append(files, c.file)
	}
	if differ = differ || len(now) != len(d.last); differ {
		paths := map[string]bool{}
		for path := range now {
			paths[path] = true
		}
		if err := d.Copies.keepOnly(paths); err != nil {
			d.Log.Warn("copies of manifests not removed", "err", err)
		}
	}
	d.last = now
	return files, differ, nil
}

// writing is the time since its last change for which a file that is open for writing counts as
// unfinished. Some programs keep files open forever.
const writing = 10 * time.Second

var errWriting = errors.New("it is being written")

// read returns the content of a manifest. It returns errWriting while a program is writing to the
// file, since the content may be incomplete.
func read(path string) ([]byte, error) {
	f, err := regular.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() > maxSize {
		return nil, fmt.Errorf("%s: %d bytes, more than a manifest may have (%d)", path, info.Size(), maxSize)
	}
	if has, _ := filelease.HasWriter(f); has && time.Since(info.ModTime()).Abs() < writing {
		return nil, fmt.Errorf("%s: %w", path, errWriting)
	}
	return regular.ReadAll(f, maxSize)
}
