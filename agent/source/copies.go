package source

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/internal/atomicfile"
)

// Copies is the directory with the last good version of each manifest, in a file named by the hash
// of the manifest's path. "" means no copies. The copies may contain secrets.
type Copies string

func (c Copies) path(of string) string {
	sum := sha256.Sum256([]byte(of))
	return filepath.Join(string(c), hex.EncodeToString(sum[:16]))
}

// put stores data, the content of the manifest at path.
func (c Copies) put(path string, data []byte) error {
	if c == "" {
		return nil
	}
	if err := atomicfile.MakeDirs(string(c), 0o700); err != nil {
		return err
	}
	return atomicfile.Write(c.path(path), data, 0o600)
}

func (c Copies) get(path string) ([]byte, error) {
	if c == "" {
		return nil, nil
	}
	data, err := os.ReadFile(c.path(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

// none reports whether there are no copies: no manifest was ever good, or all were removed.
func (c Copies) none() bool {
	if c == "" {
		return true
	}
	entries, err := os.ReadDir(string(c))
	return len(entries) == 0 && (err == nil || errors.Is(err, fs.ErrNotExist))
}

func (c Copies) keepOnly(paths map[string]bool) error {
	if c == "" {
		return nil
	}
	entries, err := os.ReadDir(string(c))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	names := map[string]bool{}
	for path := range paths {
		names[filepath.Base(c.path(path))] = true
	}
	for _, e := range entries {
		if !names[e.Name()] {
			if err := os.Remove(filepath.Join(string(c), e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// load decodes data, the content of the manifest at path; err, if not nil, says why it could not be
// read. A bad manifest gets the objects of its last good version, from last or from the copy. A
// manifest that had objects and now has none is bad too: a program may be about to write the file,
// or a power cut lost its content.
//
// Content that equals the copy was accepted before, perhaps by an earlier release, and is decoded
// as such.
func (c Copies) load(path string, data []byte, err error, last *File, decode Decode) File {
	f := File{Path: path, Err: err}
	unchanged := false // since the copy was made
	if err == nil {
		copied, _ := c.get(path)
		unchanged = copied != nil && bytes.Equal(copied, data)
		f.Objects, f.Warnings, f.Err = decode(path, data, unchanged)
	}
	good := f.Err == nil
	if !good || len(f.Objects) == 0 {
		objects, err := c.before(path, last, decode)
		if err != nil {
			f.Warnings = append(f.Warnings, kept(path, err))
		}
		if good && len(objects) > 0 {
			good, f.Err = false, fmt.Errorf("%s: defines nothing any more (remove the file to end what it defined)", path)
		}
		f.Objects = objects
	}
	if good && !unchanged {
		// A failure is only a warning: the copy is not needed until the file goes bad.
		if err := c.put(path, data); err != nil {
			f.Warnings = append(f.Warnings, kept(path, err))
		}
	}
	return f
}

func (c Copies) before(path string, last *File, decode Decode) ([]manifest.Object, error) {
	if last != nil {
		return last.Objects, nil
	}
	data, err := c.get(path)
	if err != nil || data == nil {
		return nil, err
	}
	objects, _, err := decode(path, data, true)
	return objects, err
}

func kept(path string, err error) manifest.Error {
	return manifest.Error{File: path, Text: "no copy of the last good version: " + err.Error()}
}
